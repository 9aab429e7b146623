// Version, error texts, counted initialisation.
#include <errno.h>
#include <rdmalloc/rdmalloc.h>

#include <atomic>

#include "alloc/cache/shards.h"
#include "alloc/core/init.h"
#include "alloc/core/options.h"
#include "alloc/pages/places.h"
#include "alloc/purge/purge.h"

using namespace rdmalloc;

namespace {

// seq_cst, against the state of the purge thread: a caller of rdmalloc_init() that finds the thread
// there, on its way out, was counted before that, and the last rdmalloc_fini() looks here once the
// thread is gone; one that makes it again looks here after that, and the last one that finds it not
// made yet was no longer counted.
constinit std::atomic<int> initialisations{0};

#define RDMALLOC_TEXT_(x) #x
#define RDMALLOC_TEXT(x) RDMALLOC_TEXT_(x)

}  // namespace

extern "C" {

const char* rdmalloc_version(void) {
  return RDMALLOC_TEXT(RDMALLOC_VERSION_MAJOR) "." RDMALLOC_TEXT(
      RDMALLOC_VERSION_MINOR) "." RDMALLOC_TEXT(RDMALLOC_VERSION_PATCH);
}

const char* rdmalloc_strerror(int error) {
  switch (error) {
    case 0:
      return "success";
    case -EINVAL:
      return "an argument is out of range, or a struct's size is not set";
    case -E2BIG:
      return "a struct asks for something that this library does not know";
    case -ENOMEM:
      return "no memory, no address space, or a registration limit is reached";
    case -ENOENT:
      return "not found: no such name, or not registered, adopted or loaded";
    case -EPERM:
      return "not permitted, or read only";
    case -EACCES:
      return "the access rights asked are not granted to this kind of memory";
    case -EFAULT:
      return "the memory is another owner's, or not inside one block in use";
    case -EBUSY:
      return "in use: a registration is held, or purging is paused";
    case -EINPROGRESS:
      return "not now: the library does it later";
    case -EDEADLK:
      return "called from inside a page event or a callback, where it would wait for itself";
    case -EALREADY:
      return "nothing to do: it is so already, or no matching call came before";
    case -EAGAIN:
      return "not now: quiesced, all buffers out, invalidated meanwhile, or a thread could not be "
             "created";
    case -ENOTSUP:
      return "not supported by this registrar, kernel or setting";
    case -ENOSPC:
      return "a table is full";
    case -EMFILE:
      return "too many domains, registered heaps, pools or files";
    case -ENODEV:
      return "no such device, or it is gone";
    case -ECHILD:
      return "of the parent process; a child of fork opens its own";
    case -ENOSYS:
      return "the kernel lacks a system call that this needs";
    case -EMSGSIZE:
      return "longer than one registration, or a buffer of the pool, may be";
    case -ENOTRECOVERABLE:
      return "a registrar failed half-way and could not undo it; the range keeps its pages";
    case -ETIMEDOUT:
      return "the time is over; nothing was changed";
    default:
      return error < 0 ? "an error of the system; see errno(3)" : "not an error";
  }
}

int rdmalloc_init(void) {
  if (!ensure_initialised()) return -ENOMEM;
  page_heap_keep_places();
  shards_learn();
  initialisations.fetch_add(1, std::memory_order_seq_cst);
  if (!has_purge_thread(options().purge)) return 0;
  int error = purge_thread_start();
  // Counted first, so that no other caller's end stops the thread meanwhile; what failed is not
  // counted.
  if (error != 0) initialisations.fetch_sub(1, std::memory_order_relaxed);
  return error;
}

int rdmalloc_fini(void) {
  int seen = initialisations.load(std::memory_order_relaxed);
  do {
    if (seen == 0) return -EALREADY;
  } while (!initialisations.compare_exchange_weak(seen, seen - 1, std::memory_order_seq_cst));
  if (seen != 1) return 0;
  if (int error = purge_thread_stop()) {
    initialisations.fetch_add(1, std::memory_order_relaxed);
    return error;
  }
  while (initialisations.load(std::memory_order_seq_cst) != 0) {
    purge_thread_start();
    if (initialisations.load(std::memory_order_seq_cst) != 0) break;
    purge_thread_stop();
  }
  return 0;
}

}  // extern "C"
