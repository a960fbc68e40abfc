use super::*;
use std::error::Error;
use std::sync::Arc;
use trunkline::PortSource;

/// Ports of a library that is there, or is not.
#[derive(Debug)]
struct Library {
    is_there: bool,
}

type Refusal = Box<dyn Error + Send + Sync>;

impl PortFamily for Library {
    fn name(&self) -> &'static str {
        "library"
    }

    fn about(&self) -> &'static str {
        "ports of a library"
    }

    fn look(&self, _: IpAddr) -> Result<String, Refusal> {
        let version = self.is_there.then(|| "Library 1.2".to_owned());
        version.ok_or_else(|| "Library is missing: install it".into())
    }

    fn source(&self, _: &str) -> Result<Arc<dyn PortSource>, Refusal> {
        Err("none is opened".into())
    }
}

#[test]
fn of_a_family_nothing_is_said_to_work_as_nothing_was_opened() {
    let of = |is_there| Kind::of_family(&Library { is_there }, [127, 0, 0, 1].into());
    let there = of(true);
    assert_eq!((there.port.as_str(), there.works), ("library:...", None));
    assert_eq!(
        there.said(),
        "there is Library 1.2; a device is tried when a node is opened on it"
    );
    let json = serde_json::to_value(&there).expect("it is plain data");
    assert_eq!(json.get("works"), Some(&serde_json::Value::Null), "{json}");
    assert_eq!(json["how"], "Library 1.2");
    let missing = of(false);
    assert_eq!(missing.works, Some(false));
    assert_eq!(missing.said(), "Library is missing: install it");
}
