//! Receives that connections of a lane share.
//!
//! There are as many as all of them have granted their peers, so that none waits for another's. A
//! message takes the one that was posted last: those of thousands of connections that say little
//! use the same few buffers, which stay in the cache.

use crate::lock;
use crate::memory::{Buffer, Buffers};
use crate::options::Options;
use std::sync::{Arc, Mutex};
use trunkline::{Error, Pd, QpOptions, RecvWr, Srq};

/// Most receives of one SRQ.
const MOST: u32 = 1 << 15;

/// Connections that share an SRQ.
#[derive(Debug)]
pub(crate) struct Pool {
    /// What their QPs are made with.
    qp_options: QpOptions,
    srq: Srq,
    /// Its place among those of the lane.
    number: u32,
    /// Receives of each connection.
    each: u32,
    count: Mutex<Count>,
}

#[derive(Debug, Default)]
struct Count {
    /// Receives that connections have granted.
    wanted: u32,
    /// Those that are posted: no fewer, and more where connections have ended.
    posted: u32,
}

/// What names a receive: its pool and its buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Receive {
    pub(crate) pool: u32,
    pub(crate) buffer: Buffer,
}

/// The receives of one connection. Dropping it takes them back.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Pool>);

impl Seat {
    /// What its QP is made with.
    pub(crate) fn qp_options(&self) -> &QpOptions {
        &self.0.qp_options
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.0.count).wanted -= self.0.each;
    }
}

impl Pool {
    /// One for as many connections as an SRQ has room for, with `qp_options` and `each` receives.
    ///
    /// # Errors
    /// The node has no room, or has ended.
    fn new(pd: &Pd, number: u32, each: u16, qp_options: &QpOptions) -> Result<Self, Error> {
        let each = u32::from(each);
        let srq = pd.create_srq(MOST / each * each, 1)?;
        let qp_options = QpOptions {
            srq: Some(srq.clone()),
            ..qp_options.clone()
        };
        Ok(Self {
            qp_options,
            srq,
            number,
            each,
            count: Mutex::default(),
        })
    }

    /// Gives a connection its receives; `None`: there is no room in this pool.
    ///
    /// # Errors
    /// There is no memory, or the node has ended.
    fn seat(self: &Arc<Self>, buffers: &Mutex<Buffers>) -> Result<Option<Seat>, Error> {
        let mut count = lock(&self.count);
        if count.wanted + self.each > MOST {
            return Ok(None);
        }
        count.wanted += self.each;
        // Where the rest fails it is taken back.
        let (seat, mut posted) = (Seat(Arc::clone(self)), Ok(()));
        while posted.is_ok() && count.posted < count.wanted {
            posted = self.post_one(buffers);
            count.posted += u32::from(posted.is_ok());
        }
        drop(count);
        posted.map(|()| Some(seat))
    }

    fn post_one(&self, buffers: &Mutex<Buffers>) -> Result<(), Error> {
        let buffer = lock(buffers).take()?;
        let posted = self.post(buffers, buffer);
        posted.inspect_err(|_| lock(buffers).give_back(buffer))
    }

    fn post(&self, buffers: &Mutex<Buffers>, buffer: Buffer) -> Result<(), Error> {
        let sges = [lock(buffers).whole(buffer)];
        let receive = Receive {
            pool: self.number,
            buffer,
        };
        let request = RecvWr::new().wr_id(receive.cookie()).sges(&sges);
        self.srq.post_recv(&[request])
    }

    /// The buffer of a message that was taken up: it serves the next one, if it is needed.
    ///
    /// # Errors
    /// The node has ended.
    fn recycle(&self, buffers: &Mutex<Buffers>, buffer: Buffer) -> Result<(), Error> {
        let mut count = lock(&self.count);
        let posted = match count.posted <= count.wanted {
            true => self.post(buffers, buffer).map(|()| true),
            false => Ok(false),
        };
        if !matches!(posted, Ok(true)) {
            count.posted -= 1;
            lock(buffers).give_back(buffer);
        }
        posted.map(drop)
    }
}

impl Receive {
    /// In cookies of receives this bit is set.
    const MARK: u64 = 1 << 63;

    const fn cookie(self) -> u64 {
        Self::MARK | (self.pool as u64) << 32 | self.buffer.number() as u64
    }

    /// What a cookie names, if it is that of a receive.
    pub(crate) const fn of(cookie: u64) -> Option<Self> {
        if cookie & Self::MARK == 0 {
            return None;
        }
        Some(Self {
            pool: (cookie >> 32) as u32 & !(1 << 31),
            buffer: Buffer::numbered(cookie as u32),
        })
    }
}

/// The pools of a lane. They are made as connections come.
#[derive(Debug)]
pub(crate) struct Pools {
    pd: Pd,
    each: u16,
    /// Connections that may have receives at a time.
    most: u32,
    qp_options: QpOptions,
    pools: Mutex<Vec<Arc<Pool>>>,
}

impl Pools {
    /// For connections with `qp_options`, as many as `options` say, with so many receives.
    pub(crate) fn new(pd: Pd, options: &Options, qp_options: QpOptions) -> Self {
        Self {
            pd,
            each: options.receives,
            most: options.connections,
            qp_options,
            pools: Mutex::default(),
        }
    }

    /// Gives a connection its receives; `None`: there are as many connections as there may be.
    ///
    /// # Errors
    /// There is no memory, or the node has ended.
    pub(crate) fn seat(&self, buffers: &Mutex<Buffers>) -> Result<Option<Seat>, Error> {
        let mut pools = lock(&self.pools);
        let wanted = pools.iter().map(|pool| lock(&pool.count).wanted);
        if wanted.sum::<u32>() / u32::from(self.each) >= self.most {
            return Ok(None);
        }
        for pool in pools.iter() {
            if let Some(seat) = pool.seat(buffers)? {
                return Ok(Some(seat));
            }
        }
        let number = pools.len() as u32;
        let pool = Pool::new(&self.pd, number, self.each, &self.qp_options)?;
        pools.push(Arc::new(pool));
        pools[number as usize].seat(buffers)
    }

    /// The message of a receive was taken up.
    ///
    /// # Errors
    /// The node has ended.
    pub(crate) fn recycle(&self, buffers: &Mutex<Buffers>, receive: Receive) -> Result<(), Error> {
        let pool = Arc::clone(&lock(&self.pools)[receive.pool as usize]);
        pool.recycle(buffers, receive.buffer)
    }

    /// Receives that are posted, and those that connections have granted.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> Vec<(u32, u32)> {
        let pools = lock(&self.pools);
        let counts = pools.iter().map(|pool| lock(&pool.count));
        counts.map(|count| (count.posted, count.wanted)).collect()
    }
}

#[cfg(test)]
mod tests;
