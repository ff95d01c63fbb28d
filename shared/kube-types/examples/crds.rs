//! Writes the generated definitions into `crds/`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    std::fs::create_dir_all(&folder)?;
    for definition in oxalyst_kube_types::crd::all() {
        std::fs::write(folder.join(&definition.file), definition.yaml()?)?;
    }
    Ok(())
}
