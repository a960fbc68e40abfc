#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;

fn parse(text: &str) -> DpdkSpec {
    text.parse().unwrap()
}

fn refused(text: &str) -> String {
    let error = text.parse::<DpdkSpec>().expect_err(text);
    error.to_string()
}

#[test]
fn texts_come_back_as_they_were_written() {
    for text in [
        "ring",
        "ring,name=a mtu=9000",
        "net_memif0,role=server,socket=/run/m.sock prefix=24",
        "net_memif0,role=client,id=3 prefix=64 gateway=fd09::1 mtu=4200 mac=02:00:00:00:00:01",
        "net_af_packet0,iface=eth0",
        "net_af_xdp3,iface=eth0,start_queue=2 gateway=192.0.2.1",
        "0000:03:00.0 prefix=24",
        "0001:a3:1f.7,txq_inline=0 prefix=24 -- -m 1024 --legacy-mem",
        "net_null0 prefix=0 -- --no-huge",
    ] {
        assert_eq!(parse(text).to_string(), text);
    }
    assert_eq!(
        parse("  03:00.0   prefix=8 ").to_string(),
        "0000:03:00.0 prefix=8"
    );
}

#[test]
fn a_text_says_device_network_and_arguments() {
    let spec = parse("net_memif0,role=client,bsize=4096 prefix=24 gateway=10.0.0.1 -- -m 64");
    assert_eq!(spec.device().driver(), Driver::Memif);
    assert_eq!(spec.device().name(), "net_memif0");
    assert_eq!(spec.device().argument("bsize"), Some("4096"));
    assert_eq!(spec.device().argument("size"), None);
    assert_eq!(spec.prefix(), Some(24));
    assert_eq!(spec.gateway(), Some(IpAddr::from([10, 0, 0, 1])));
    assert_eq!((spec.mtu(), spec.mac()), (None, None));
    assert_eq!(spec.arguments(), ["-m", "64"]);
    let defaults = [("bsize", "1".to_owned()), ("rsize", "11".to_owned())];
    let devargs = "net_memif0,role=client,bsize=4096,rsize=11";
    assert_eq!(spec.device().devargs(&defaults), devargs);
}

/// An end of a memif whose socket has a name of that length.
fn memif(length: usize, rest: &str) -> String {
    let name = "x".repeat(length - 1);
    format!("net_memif0,role=client,socket=/{name}{rest}")
}

#[test]
fn a_socket_has_the_longest_name_that_there_is() {
    for text in [memif(106, ""), memif(107, ",socket-abstract=no")] {
        text.parse::<DpdkSpec>().unwrap();
    }
}

#[test]
fn a_primary_process_may_be_said_to_be_one() {
    for words in ["--proc-type=primary", "--proc-type primary -m 64"] {
        format!("ring -- {words}").parse::<DpdkSpec>().unwrap();
    }
}

#[test]
fn what_is_wrong_is_said() {
    let [long_name, long_path] = [memif(107, ""), memif(108, ",socket-abstract=no")];
    for (text, why) in [
        ("", "which device?"),
        ("  -- -m 64", "which device?"),
        ("eth0", "\"eth0\" is no device: there are net_memif0"),
        ("0000:03:00.9", "is no device"),
        ("00:03:00.1", "is no device"),
        ("net_memif0", "lacks role=server or role=client"),
        ("net_memif0,role=both", "lacks role=server"),
        (&long_name, "an abstract one has up to 106"),
        (&long_path, "a path has up to 107"),
        ("net_af_xdp0", "lacks iface="),
        ("net_af_packet0,iface", "not key=value"),
        ("ring,size=3", "takes name= alone"),
        ("ring prefix", "\"prefix\" is none of"),
        ("ring colour=red", "\"colour=red\" is none of"),
        ("ring prefix=129", "it is in 0..=32"),
        ("ring prefix=-1", "it is in 0..=32"),
        ("ring mtu=1279", "it is in 1280..=9600"),
        ("ring mtu=65536", "it is in 1280..=9600"),
        ("ring gateway=gate", "it is an IP address"),
        ("ring mac=1:2:3:4:5:6", "the address of one host"),
        ("ring mac=01:00:00:00:00:01", "the address of one host"),
        ("ring mac=02:00:00:00:00:01:01", "the address of one host"),
        ("ring mtu=1500 mtu=1500", "mtu= is there twice"),
        ("net_af_packet0,iface=eth0 prefix=24", "leave out prefix="),
        ("ring -- -h", "`-h` cannot be among the EAL arguments"),
        ("ring -- -m 64 --help", "`--help` cannot be among"),
        ("ring -- --he", "`--he` cannot be among"),
        ("ring -- --proc-type=secondary", "takes a primary process"),
        ("ring -- --proc-type auto", "takes a primary process"),
        ("ring -- --proc-t=secondary", "takes a primary process"),
    ] {
        let said = refused(text);
        assert!(said.contains(why), "{text}: {said}");
    }
}
