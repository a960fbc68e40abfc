use super::{
    Atomic, Bind, Layout, MwBindInfo, Rdma, SendWr, Ud, attributes, context, objects, work,
};
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

const HEADER: &str = "/usr/include/infiniband/verbs.h";
const HEADERS: [&str; 6] = [
    "stdio.h",
    "stddef.h",
    "infiniband/verbs.h",
    "infiniband/sa.h",
    "rdma/ib_user_verbs.h",
    "rdma/ib_user_sa.h",
];

/// Fields of structures without a name.
const NESTED: &[(&str, usize)] = &[
    (
        "wr.rdma.rkey",
        offset_of!(SendWr, wr) + offset_of!(Rdma, rkey),
    ),
    (
        "wr.atomic.compare_add",
        offset_of!(SendWr, wr) + offset_of!(Atomic, compare_add),
    ),
    (
        "wr.atomic.swap",
        offset_of!(SendWr, wr) + offset_of!(Atomic, swap),
    ),
    (
        "wr.atomic.rkey",
        offset_of!(SendWr, wr) + offset_of!(Atomic, rkey),
    ),
    (
        "wr.ud.remote_qpn",
        offset_of!(SendWr, wr) + offset_of!(Ud, remote_qpn),
    ),
    (
        "wr.ud.remote_qkey",
        offset_of!(SendWr, wr) + offset_of!(Ud, remote_qkey),
    ),
    (
        "bind_mw.rkey",
        offset_of!(SendWr, bind_mw) + offset_of!(Bind, rkey),
    ),
    (
        "bind_mw.bind_info.length",
        offset_of!(SendWr, bind_mw) + offset_of!(Bind, bind_info) + offset_of!(MwBindInfo, length),
    ),
];

fn layouts() -> Vec<Layout> {
    let all = [
        context::LAYOUTS,
        objects::LAYOUTS,
        work::LAYOUTS,
        attributes::LAYOUTS,
        crate::marshal::LAYOUTS,
    ];
    let all = all.into_iter().flatten();
    let mut layouts: Vec<_> = all.map(|layout| Layout { ..*layout }).collect();
    layouts.push(Layout {
        name: "ibv_send_wr",
        size: size_of::<SendWr>(),
        fields: NESTED,
    });
    layouts
}

/// A program that prints what the compiler of C makes of the same structures, and what it prints if
/// that is the same.
fn program(layouts: &[Layout]) -> (String, String) {
    let mut source = String::new();
    for header in HEADERS {
        writeln!(source, "#include <{header}>").expect("a string");
    }
    source += "int main(void)\n{\n";
    let mut expected = String::new();
    for Layout { name, size, fields } in layouts {
        writeln!(source, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").expect("a string");
        writeln!(expected, "{name} {size}").expect("a string");
        for (field, offset) in *fields {
            let field = field.trim_start_matches("r#");
            let asked = format!("offsetof(struct {name}, {field})");
            writeln!(source, "printf(\"{name}.{field} %zu\\n\", {asked});").expect("a string");
            writeln!(expected, "{name}.{field} {offset}").expect("a string");
        }
    }
    source += "return 0;\n}\n";
    (source, expected)
}

#[test]
fn structures_lie_in_memory_as_the_header_of_the_distribution_has_them() {
    if !Path::new(HEADER).exists() || Command::new("cc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: {HEADER} and a C compiler are needed to compare layouts");
        return;
    }
    let (source, expected) = program(&layouts());
    let folder = std::env::temp_dir().join(format!("trunkline-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for a program");
    let [file, binary] = ["layout.c", "layout"].map(|name| folder.join(name));
    std::fs::write(&file, source).expect("room for a program");
    let built = Command::new("cc").arg("-o").args([&binary, &file]).output();
    let built = built.expect("there is a compiler");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let printed = Command::new(&binary).output().expect("it was built");
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    let printed = String::from_utf8_lossy(&printed.stdout);
    for (ours, theirs) in expected.lines().zip(printed.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(expected.lines().count(), printed.lines().count());
}
