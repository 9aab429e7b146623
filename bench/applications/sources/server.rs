// rust_server THREADS REQUESTS: a server of threads with Rust's system allocator, that is malloc:
// requests come through channels, are parsed into maps of strings, and answered through a channel
// each. Crates are left out: an async runtime moves the same boxes between the same threads.
use std::collections::HashMap;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

struct Request {
    text: String,
    answer: Sender<HashMap<String, Vec<String>>>,
}

fn parsed(text: &str) -> HashMap<String, Vec<String>> {
    let mut table: HashMap<String, Vec<String>> = HashMap::new();
    for word in text.split('&') {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        table.entry(key.to_string()).or_default().push(format!("{value} as it was understood"));
    }
    table
}

fn serve(requests: Arc<Mutex<Receiver<Request>>>) {
    loop {
        let next = requests.lock().unwrap().recv();
        let Ok(request) = next else { return };
        let _ = request.answer.send(parsed(&request.text));
    }
}

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let &[threads, count] = &arguments[..] else {
        eprintln!("usage: rust_server THREADS REQUESTS");
        std::process::exit(2);
    };
    let (send, receive) = channel::<Request>();
    let receive = Arc::new(Mutex::new(receive));
    let team: Vec<_> = (0..threads)
        .map(|_| {
            let requests = Arc::clone(&receive);
            thread::spawn(move || serve(requests))
        })
        .collect();
    let mut waiting = std::collections::VecDeque::new();
    let mut answered = 0;
    for number in 0..count {
        let text: String = (0..20).map(|i| format!("key{}={}&", (number + i) % 977, number * i)).collect();
        let (answer, answers) = channel();
        send.send(Request { text, answer }).unwrap();
        waiting.push_back(answers);
        if waiting.len() >= 256 {
            answered += usize::from(!waiting.pop_front().unwrap().recv().unwrap().is_empty());
        }
    }
    for answers in waiting {
        answered += usize::from(!answers.recv().unwrap().is_empty());
    }
    drop(send);
    for member in team {
        member.join().unwrap();
    }
    println!("{answered} answered");
    std::process::exit(if answered == count { 0 } else { 1 });
}
