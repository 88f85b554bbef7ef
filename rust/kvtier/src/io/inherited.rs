//! Descriptors that a forked child has from its parent.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::dup2;

/// In a forked child: makes the child's copy of `file` lead nowhere, so that the locks which its parent holds through it
/// end with the parent. Whoever has the file in the child goes on to have a valid descriptor.
pub(crate) fn let_go_in_child(file: &File) {
    let Ok(nowhere) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    // SAFETY: the descriptor is open, since `file` owns it, and stays so: `dup2` replaces what it leads to, and the copy of
    // its number is never closed by this second owner.
    let mut copy = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(file.as_raw_fd()) });
    // Close-on-exec goes with the old description's descriptor; /dev/null may be inherited.
    let _ = dup2(&nowhere, &mut copy);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_file_leads_nowhere_and_its_other_descriptors_stay() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&path, "there").unwrap();
        let mut file = File::open(&path).unwrap();
        let mut other = file.try_clone().unwrap();
        let_go_in_child(&file);
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
        other.read_to_string(&mut text).unwrap();
        assert_eq!(text, "there");
    }
}
