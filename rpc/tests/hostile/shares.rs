//! What a server keeps for its connections: each gives back what it had, whatever becomes of it.

use super::*;

/// A server that keeps 64 KiB, and so 32 of each connection: two bodies of up to 16 KiB.
fn small() -> Options {
    Options {
        requests: 8,
        large_bytes: 64 << 10,
        ..Options::default()
    }
}

/// All that a connection may have can be had: four times what it is.
async fn is_whole(far: &Endpoint) {
    let near = endpoint(Options::default());
    let client = near.connect(at(far)).await.unwrap();
    let one = || client.call(vec![7; 9000]);
    let whole = async {
        loop {
            let all = [
                one().await.is_ok(),
                client.call(vec![7; 20_000]).await.is_ok(),
            ];
            if all == [true; 2] {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), whole)
        .await
        .expect("all that was kept is given back");
}

#[test]
fn whatever_becomes_of_a_connection_gives_back_what_it_had() {
    on_both(async || {
        let (far, home) = (endpoint(small()), node());
        let _server = echo(&far);
        for round in 0..6_u32 {
            // Memory that is not there, requests that wait behind it, and one that is cancelled.
            for length in [9000, 16_384, 16_385, 32_768, 32_769] {
                let liar = Liar::connect(&home, &far).await;
                let wrong = Remote {
                    rkey: Rkey(liar.end.mr.rkey().0 ^ 0x5555_0000),
                    ..liar.end.mr.remote(0)
                };
                let closed = far.counters().connections_closed;
                let at = |id, remote| entry(id, REQUEST, AT, length, 0, &extent(remote));
                let own = liar.end.mr.remote(0);
                let first = if round % 2 == 0 { wrong } else { own };
                let cancel = entry(0, CANCEL, 0, 0, 0, &[]);
                liar.say(&[at(0, first), at(1, own), at(2, wrong), cancel].concat());
                if length <= 16_384 && round % 2 == 0 {
                    until(|| far.counters().connections_closed > closed).await;
                }
                drop(liar);
            }
            is_whole(&far).await;
        }
        // Responses that nobody reads, and one of a connection that goes while they are lent.
        for _ in 0..4 {
            let mut liar = Liar::connect(&home, &far).await;
            liar.is_lent(0, 9000).await;
            liar.is_lent(1, 9000).await;
            let own = extent(liar.end.mr.remote(0));
            liar.say(&entry(2, REQUEST, AT, 9000, 0, &own));
            assert_eq!(liar.hear().await, entry(2, REFUSED, 0, 0, 1, &[]));
            let release = |id| entry(id, RELEASE, 0, 0, 0, &[]);
            liar.say(&release(0));
            liar.is_lent(2, 9000).await;
            drop(liar);
            is_whole(&far).await;
        }
        // Services that never answer.
        let far = endpoint(small());
        let never = tower::service_fn(|_| async {
            std::future::pending::<()>().await;
            Ok::<_, Refusal>(Bytes::new())
        });
        let server = far.listen(at(&far), never).unwrap();
        for round in 0..4 {
            let mut liar = Liar::connect(&home, &far).await;
            let own = extent(liar.end.mr.remote(0));
            let request = |id| entry(id, REQUEST, AT, 9000, 0, &own);
            for again in 0..10 {
                liar.say(&[request(again % 3), request((again + 1) % 3)].concat());
                let came = 2 * (10 * round + u64::from(again) + 1);
                until(|| far.counters().requests_received == came).await;
                let cancel = |id| entry(id, CANCEL, 0, 0, 0, &[]);
                liar.say(&[cancel(again % 3), cancel((again + 1) % 3)].concat());
                let mut heard = 0;
                while heard < 2 * 16 {
                    heard += liar.hear().await.len();
                }
            }
            drop(liar);
        }
        drop(server);
    });
}

#[test]
fn two_connections_of_one_peer_have_a_share_each() {
    on_both(async || {
        let (far, home) = (endpoint(small()), node());
        let _server = echo(&far);
        let mut one = Liar::connect(&home, &far).await;
        one.is_lent(0, 9000).await;
        one.is_lent(1, 9000).await;
        let mut other = Liar::connect(&home, &far).await;
        other.is_lent(0, 9000).await;
        let own = extent(other.end.mr.remote(0));
        other.say(&entry(1, REQUEST, AT, 9000, 0, &own));
        assert_eq!(other.hear().await, entry(1, REFUSED, 0, 0, 1, &[]));
        // Neither has anything to do with how it is: room for 16 KiB is left.
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        assert_eq!(client.call(vec![1; 9000]).await, Err(RpcError::Overloaded));
        drop((one, other));
        is_whole(&far).await;
    });
}

#[test]
fn a_body_as_long_as_bodies_may_be_is_taken_where_nothing_else_is_kept() {
    on_both(async || {
        let options = Options {
            max_body: 48 << 20,
            large_bytes: 64 << 20,
            ..Options::default()
        };
        let far = endpoint(options);
        let _server = echo(&far);
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        let answer = client.call(vec![1; 48 << 20]).await;
        assert_eq!(answer.map(|body| body.len()), Ok(48 << 20));
    });
}
