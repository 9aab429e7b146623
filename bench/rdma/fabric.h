// What rdma_bcast needs of a fabric: two processes that are connected, and a way to register a
// buffer for the time of one transfer.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <memory>

namespace rdmalloc::bench {

// Who registers a buffer before each transfer and lets go of it after.
enum class KeySource {
  rdmalloc,  // rdmalloc_reg_get and rdmalloc_reg_put
  each,      // the fabric's own calls, its own cache turned off
  fabric,    // the same calls, its own cache left on (libfabric)
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  // The root sends, the other receives; both block until it is done. `bytes` fits the fabric.
  virtual void send(void* buffer, std::size_t bytes) = 0;
  // `posted` is called once the buffer is waiting for the data.
  virtual void receive(void* buffer, std::size_t bytes, void (*posted)(void*), void* argument) = 0;
};

// `socket` leads to the other process, for exchanging addresses. Ends the process with a message
// when there is no such device: a benchmark has nothing else to do then.
std::unique_ptr<Fabric> open_verbs(KeySource keys, int socket);
std::unique_ptr<Fabric> open_libfabric(KeySource keys, int socket);

// Between two looks for a completion. No time is measured here, and where soft-RoCE's work is done
// by the same processors, emulated ones above all, who looks without a pause takes them from it.
class Patience {
 public:
  void found_nothing() {
    constexpr int kLooks = 1000;
    constexpr useconds_t kPauseMicroseconds = 100;
    if (++looks_ > kLooks) usleep(kPauseMicroseconds);
  }

 private:
  int looks_ = 0;
};

[[noreturn]] void fail(const char* what, long error);
// Whole messages over the socket.
void put(int socket, const void* data, std::size_t bytes);
void get(int socket, void* data, std::size_t bytes);

}  // namespace rdmalloc::bench
