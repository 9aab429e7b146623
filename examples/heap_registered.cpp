// SPDX-License-Identifier: BSD-3-Clause
//
// A std::vector whose buffer is always registered: it lives in a heap that was registered with an
// io_uring as a whole, grows as vectors do, and is written to a file through a fixed buffer at any
// time, without a registration for it.
//
//     c++ -std=c++20 heap_registered.cpp $(pkg-config --cflags --libs rdmalloc-uring liburing)
//     ./a.out /tmp/file
#include <fcntl.h>
#include <liburing.h>
#include <rdmalloc/registrar_uring.h>
#include <unistd.h>

#include <cstdio>
#include <rdmalloc/rdmalloc.hpp>
#include <vector>

namespace {

using Numbers = std::vector<int, rdmalloc::allocator<int>>;

int fail(const char* what, const std::error_code& error) {
  std::fprintf(stderr, "heap_registered: %s: %s\n", what, error.message().c_str());
  return 1;
}

// Writes the vector where it lies. The bytes written, or a negative errno.
int write_fixed(rdmalloc_uring* uring, int file, const Numbers& numbers) {
  auto key = rdmalloc::key_of(numbers);
  if (!key) return -key.error().value();
  io_uring* ring = rdmalloc_uring_ring(uring);
  io_uring_sqe* sqe = io_uring_get_sqe(ring);
  io_uring_prep_write_fixed(sqe, file, numbers.data(),
                            static_cast<unsigned>(numbers.size() * sizeof(int)), 0,
                            static_cast<int>(key->lkey));
  sqe->user_data = 1;
  int error = io_uring_submit(ring);
  if (error < 0) return error;
  io_uring_cqe done = {};
  error = rdmalloc_uring_reap(uring, &done, 1, true);
  return error < 0 ? error : done.res;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FILE (is overwritten)\n", argv[0]);
    return 2;
  }
  int file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return fail(argv[1], rdmalloc::error_of(-errno));
  rdmalloc_domain* handle = nullptr;
  rdmalloc_uring* uring = nullptr;
  int error = rdmalloc_domain_open_uring(nullptr, nullptr, &handle, &uring);
  if (error != 0) return fail("rdmalloc_domain_open_uring", rdmalloc::error_of(error));
  rdmalloc::domain domain(handle);

  // Registered here, all of it, and nowhere else; on huge pages of the kernel's pool, of which a
  // device needs fewer entries, if an administrator has set some aside. Declared after the domain:
  // it ends first.
  auto made = rdmalloc::heap::create_registered(domain, 8 << 20, rdmalloc::access::local,
                                                rdmalloc::page_size::huge_2m);
  if (!made) made = rdmalloc::heap::create_registered(domain, 8 << 20);
  if (!made) return fail("rdmalloc::heap", made.error());
  rdmalloc::heap heap = std::move(*made);
  Numbers numbers{rdmalloc::allocator<int>(heap)};
  for (int i = 0; i < 500000; ++i) {
    numbers.push_back(i);
    if (i % 100000 != 99999) continue;
    int wrote = write_fixed(uring, file, numbers);
    if (wrote < 0) return fail("writing", rdmalloc::error_of(wrote));
    std::printf("%d bytes written\n", wrote);
  }
  close(file);
  auto counters = domain.counters();
  std::printf("%llu registration\n", static_cast<unsigned long long>(counters->registrations));
  return counters->registrations == 1 ? 0 : 1;
}
