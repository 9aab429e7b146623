// SPDX-License-Identifier: BSD-3-Clause
//
// A barrier of the processes of one mpirun on one machine, for when MPI is not initialised: ranks
// that drift apart by whole sessions wait for each other in different fences (open-mpi/ompi
// #14125).
#ifndef RDMALLOC_TESTS_LAB_PROGRAMS_MEETING_H
#define RDMALLOC_TESTS_LAB_PROGRAMS_MEETING_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace lab {

class Meeting {
 public:
  Meeting() {
    // mpirun's: their common parent.
    snprintf(name_, sizeof name_, "/rdmalloc-sessions.%d", static_cast<int>(getppid()));
    int file = shm_open(name_, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof *arrivals_) != 0) abort();
    void* memory = mmap(nullptr, sizeof *arrivals_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) abort();
    close(file);
    arrivals_ = static_cast<std::atomic<uint64_t>*>(memory);
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  // The last process has met all others: none opens it any more.
  ~Meeting() { shm_unlink(name_); }

  // Waits for all `processes`. The caller of the program has the time limit.
  void wait_for(uint64_t processes) {
    meetings_++;
    arrivals_->fetch_add(1);
    while (arrivals_->load() < meetings_ * processes) usleep(1000);
  }

 private:
  char name_[64];
  std::atomic<uint64_t>* arrivals_ = nullptr;
  uint64_t meetings_ = 0;
};

}  // namespace lab

#endif
