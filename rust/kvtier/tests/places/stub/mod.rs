//! A small server of buckets in this process, which speaks the three protocols and misbehaves on demand.

mod azure;
mod bucket;
mod fault;
mod http;
mod tls;

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub use bucket::Bucket;
pub use fault::{Fault, What};
pub use http::{Answer, Head};
pub use tls::TlsFront;

/// The one bucket that exists.
pub const BUCKET: &str = "bucket";

/// The server. It takes no more connections when dropped; those there are end with their clients.
pub struct Server {
    pub shared: Arc<Shared>,
    address: SocketAddr,
}

type Fate = Box<dyn FnMut(&Head) -> Option<What> + Send>;

/// What the connections' threads share.
pub struct Shared {
    pub bucket: Mutex<Bucket>,
    pub faults: Mutex<Vec<Fault>>,
    /// Asked about every request that no fault is for.
    fate: Mutex<Fate>,
    /// Every request, as `METHOD path`.
    pub log: Mutex<Vec<String>>,
    /// Whether there was a checksum, of every upload of a block that began.
    pub checksums: Mutex<Vec<bool>>,
    /// Headers of the latest request.
    pub latest: Mutex<Option<Head>>,
    stopped: AtomicBool,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            bucket: Mutex::default(),
            faults: Mutex::default(),
            fate: Mutex::new(Box::new(|_| None)),
            log: Mutex::default(),
            checksums: Mutex::default(),
            latest: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let serving = Arc::clone(&accepting);
                std::thread::spawn(move || {
                    let _ = serve(&serving, stream);
                });
            }
        });
        Self { shared, address }
    }

    /// `http://127.0.0.1:port`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Adds a fault behind those that are there; the first that fits a request happens to it.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.lock().unwrap().push(fault);
    }

    /// Lets `fate` say what goes wrong with a request.
    pub fn on_request(&self, fate: impl FnMut(&Head) -> Option<What> + Send + 'static) {
        *self.shared.fate.lock().unwrap() = Box::new(fate);
    }

    pub fn clear_faults(&self) {
        self.shared.faults.lock().unwrap().clear();
    }

    /// How many connections clients on this machine have to the server, as the system sees them.
    pub fn clients(&self) -> usize {
        const ESTABLISHED: &str = "01";
        let port = format!(":{:04X}", self.port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let columns = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        columns.filter(|columns| columns[2].ends_with(&port) && columns[3] == ESTABLISHED).count()
    }

    pub fn bucket(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.shared.bucket.lock().unwrap()
    }

    /// How many requests of this method there were so far, to names that contain `name`.
    pub fn requests(&self, method: &str, name: &str) -> usize {
        let log = self.shared.log.lock().unwrap();
        log.iter().filter(|line| line.starts_with(&format!("{method} ")) && line.contains(name)).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(shared: &Shared, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(head) = Head::read(&mut reader)? {
        shared.log.lock().unwrap().push(format!("{} {}", head.method, head.path));
        if head.begins_upload() && !head.path.ends_with("config.json") {
            let checksum = ["x-amz-checksum-crc64nvme", "x-amz-checksum-algorithm"];
            shared.checksums.lock().unwrap().push(checksum.iter().any(|name| head.header(name).is_some()));
        }
        let fault = fault::next(&mut shared.faults.lock().unwrap(), &head);
        let fault = fault.or_else(|| shared.fate.lock().unwrap()(&head));
        let answered = match fault {
            None => {
                let body = http::read_body(&mut reader, head.body_bytes())?;
                let answer = shared.bucket.lock().unwrap().answer(&head, body);
                answer.send(&mut writer)?;
                true
            }
            Some(what) => fault::happen(what, shared, &head, &mut reader, &mut writer)?,
        };
        *shared.latest.lock().unwrap() = Some(head);
        if !answered {
            break;
        }
    }
    Ok(())
}
