//! Compiles every `.proto` below `oxalyst/` and `third_party/` with protox, so that no `protoc` is needed.

use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let mut files = Vec::new();
    for root in ["oxalyst", "third_party"] {
        println!("cargo:rerun-if-changed={root}");
        collect(Path::new(root), &mut files)?;
    }
    files.sort();
    let set = protox::compile(&files, [".", "third_party"])?;
    tonic_prost_build::configure().btree_map(".").compile_fds(set)?;
    Ok(())
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
