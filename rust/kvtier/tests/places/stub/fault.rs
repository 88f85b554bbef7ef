//! What goes wrong.

use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use super::http::{self, Answer, Head};

/// One fault: what happens to the next requests that it is for.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which requests; an empty text is any.
    pub method: &'static str,
    /// Part of the object's name; an empty text is any.
    pub name: String,
    /// How many such requests go well before.
    pub after: usize,
    /// How many go wrong then.
    pub times: usize,
    pub what: What,
}

impl Fault {
    /// The next request of this method goes wrong.
    pub fn once(method: &'static str, what: What) -> Self {
        Self { method, name: String::new(), after: 0, times: 1, what }
    }

    /// Every one does.
    pub fn always(method: &'static str, what: What) -> Self {
        Self { times: usize::MAX, ..Self::once(method, what) }
    }
}

#[derive(Clone, Debug)]
pub enum What {
    /// This answer instead.
    Answer(Answer),
    /// The right answer with another body, or other headers.
    Changed(fn(Answer) -> Answer),
    /// The connection is reset when the request's head has come.
    ResetBefore,
    /// … when so many bytes of the request's body have come.
    ResetInRequest(usize),
    /// … when the request has been carried out, before its answer.
    ResetAfter,
    /// … after so many bytes of the answer's body.
    ResetInAnswer(usize),
    /// The connection ends as if all was well after so many bytes of the answer's body.
    Truncated(usize),
    /// The answer's body has more bytes than it announces.
    Overlong,
    /// Nothing is read or sent any more when the request's head has come.
    Stall,
    /// … when so many bytes of the request's body have come.
    StallInRequest(usize),
    /// The request is carried out, and nothing is sent.
    StallAfter,
    /// … and nothing is sent any more after so many bytes of the answer's body.
    StallInAnswer(usize),
    /// This answer at once, while the request's body is neither read nor refused.
    EarlyAnswer(Answer),
    /// The answer's body comes in pieces of so many bytes, with a pause after each.
    Trickle(usize, Duration),
    /// All goes well, after a while.
    Late(Duration),
}

pub fn next(faults: &mut Vec<Fault>, head: &Head) -> Option<What> {
    let fits = |f: &Fault| (f.method.is_empty() || f.method == head.method) && head.path.contains(&f.name);
    let at = faults.iter().position(fits)?;
    let fault = &mut faults[at];
    if fault.after > 0 {
        fault.after -= 1;
        return None;
    }
    let what = fault.what.clone();
    fault.times -= 1;
    if fault.times == 0 {
        faults.remove(at);
    }
    Some(what)
}

/// Returns whether the connection can go on.
pub fn happen(
    what: What,
    shared: &Shared,
    head: &Head,
    reader: &mut BufReader<TcpStream>,
    writer: &mut TcpStream,
) -> io::Result<bool> {
    let partial =
        |reader: &mut BufReader<TcpStream>, bytes: usize| http::read_body(reader, bytes.min(head.body_bytes()));
    match what {
        What::ResetBefore => return reset(writer),
        What::ResetInRequest(bytes) => {
            partial(reader, bytes)?;
            return reset(writer);
        }
        What::Stall => return stall(shared, writer),
        What::StallInRequest(bytes) => {
            partial(reader, bytes)?;
            return stall(shared, writer);
        }
        What::EarlyAnswer(answer) => {
            answer.send(writer)?;
            return stall(shared, writer);
        }
        _ => {}
    }
    let body = http::read_body(reader, head.body_bytes())?;
    if let What::Answer(mut answer) = what {
        if head.method == "HEAD" {
            answer.announced = Some(answer.body.len());
            answer.body = Vec::new();
        }
        answer.send(writer)?;
        return Ok(true);
    }
    let answer = shared.bucket.lock().unwrap().answer(head, body);
    let begin = |writer: &mut TcpStream, bytes: usize| {
        writer.write_all(&answer.head())?;
        writer.write_all(&answer.body[..bytes.min(answer.body.len())])
    };
    match what {
        What::Changed(change) => change(answer).send(writer)?,
        What::ResetAfter => return reset(writer),
        What::ResetInAnswer(bytes) => {
            begin(writer, bytes)?;
            // Lets the bytes arrive: a reset overtakes them.
            std::thread::sleep(Duration::from_millis(20));
            return reset(writer);
        }
        What::Truncated(bytes) => {
            begin(writer, bytes)?;
            return Ok(false);
        }
        What::Overlong => {
            answer.send(writer)?;
            writer.write_all(&[0xEE; 100])?;
            return Ok(false);
        }
        What::StallAfter => return stall(shared, writer),
        What::StallInAnswer(bytes) => {
            begin(writer, bytes)?;
            return stall(shared, writer);
        }
        What::Trickle(bytes, pause) => {
            writer.write_all(&answer.head())?;
            for piece in answer.body.chunks(bytes) {
                writer.write_all(piece)?;
                std::thread::sleep(pause);
            }
        }
        What::Late(pause) => {
            std::thread::sleep(pause);
            answer.send(writer)?;
        }
        _ => {}
    }
    Ok(true)
}

/// Closes without a goodbye.
fn reset(stream: &TcpStream) -> io::Result<bool> {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
    Ok(false)
}

/// Until the client or the server gives up.
fn stall(shared: &Shared, stream: &TcpStream) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    while !shared.stopped.load(Ordering::SeqCst) {
        // Not by reading: what the client has sent must stay unread.
        if poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Some(&moment))? > 0 {
            break;
        }
    }
    Ok(false)
}
