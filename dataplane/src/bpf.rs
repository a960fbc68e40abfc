//! Classic BPF: small programs that the kernel runs on packets
//! (Documentation/networking/filter.rst).

use libc::{
    BPF_A, BPF_ABS, BPF_ALU, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, sock_filter,
    sock_fprog,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

pub(crate) const fn statement(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

pub(crate) const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Compares and goes `yes` or `no` statements further.
pub(crate) const fn equal(k: u32, yes: u8, no: u8) -> sock_filter {
    jump(BPF_JMP | BPF_JEQ | BPF_K, k, yes, no)
}

/// Loads what is at `at`; a packet that is too short for it ends the program with 0.
pub(crate) const fn load(size: u32, at: u32) -> sock_filter {
    statement(BPF_LD | size | BPF_ABS, at)
}

pub(crate) const fn alu(operation: u32, k: u32) -> sock_filter {
    statement(BPF_ALU | operation | BPF_K, k)
}

/// Goes so many statements further.
pub(crate) const fn go(further: u32) -> sock_filter {
    statement(BPF_JMP | BPF_JA, further)
}

/// Ends with the number in the accumulator.
pub(crate) const fn answer_a() -> sock_filter {
    statement(BPF_RET | BPF_A, 0)
}

/// Ends with that number.
pub(crate) const fn answer(k: u32) -> sock_filter {
    statement(BPF_RET | BPF_K, k)
}

/// Gives a program to a socket, by an option that takes one.
///
/// # Errors
/// The kernel refuses the option, or the program.
pub(crate) fn attach(
    socket: &impl AsFd,
    (level, option): (i32, i32),
    program: &mut [sock_filter],
) -> io::Result<()> {
    let program = sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let length = size_of::<sock_fprog>() as libc::socklen_t;
    let value = (&raw const program).cast();
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: `value` leads to a `sock_fprog` of this length, whose statements outlive the call.
    let result = unsafe { libc::setsockopt(socket, level, option, value, length) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
