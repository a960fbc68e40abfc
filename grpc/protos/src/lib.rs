//! The services of the tests and examples of `trunkline-grpc`, as the ordinary generators make
//! them of `proto/`. A crate of their own, so that whoever uses the library builds no generator.

#![allow(
    clippy::allow_attributes_without_reason,
    reason = "what is generated gives none"
)]

/// Bytes that are given back.
pub mod echo {
    tonic::include_proto!("trunkline.echo.v1");
}

/// Greetings.
pub mod greeter {
    tonic::include_proto!("trunkline.greeter.v1");
}
