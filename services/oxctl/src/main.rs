//! The operator's command: asks the services of this node over their sockets and prints what they say.

mod args;
mod ask;
mod duration;
mod ids;
mod manifest;
mod peers;
mod quantity;
mod reasons;
mod recorded;
mod table;
mod view;

use std::io::{self, Write};
use std::process::ExitCode;

use crate::args::Cli;
use crate::view::{Answer, Told};

const NOT_WELL: u8 = 1;
const NOTHING_TOLD: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::typed(std::env::args_os()).unwrap_or_else(|e| e.exit());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("oxctl: starting: {error}")),
    };
    let answer = runtime.block_on(ask::ask(&cli));
    // Whoever interrupts does not wait for a pager to take what was being written.
    runtime.shutdown_background();
    match answer {
        Ok(answer) => print(&answer),
        Err(error) => fail(&error.to_string()),
    }
}

fn print(answer: &Answer) -> ExitCode {
    for problem in &answer.problems {
        let _ = writeln!(io::stderr(), "{problem}");
    }
    if answer.text.is_empty() {
        return code(&answer.told);
    }
    match io::stdout().write_all(answer.text.as_bytes()) {
        Ok(()) => code(&answer.told),
        // `oxctl metrics | head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(&format!("oxctl: writing the answer: {error}")),
    }
}

fn code(told: &Told) -> ExitCode {
    match told {
        Told::Well => ExitCode::SUCCESS,
        Told::InPart => NOT_WELL.into(),
        Told::Nothing => NOTHING_TOLD.into(),
    }
}

fn fail(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "{message}");
    NOTHING_TOLD.into()
}
