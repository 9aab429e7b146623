// userfaultfd(2) for its events only: what becomes of a range's pages (unmapped, moved, removed),
// told by the kernel. No fault of a thread ever waits for us: ranges are registered for write
// protection, and nothing is ever protected. So a descriptor that handles faults of user mode only
// will do, and that needs no privilege, whatever vm.unprivileged_userfaultfd says.
//
// Linux 5.19 or later, x86-64; aarch64 since the kernel can write-protect there. Raw system calls,
// whose fault sites are in fault_sites.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc::os {

enum class PageEvent : std::uint8_t {
  kUnmapped,  // and gone: munmap, mmap or mremap over it, brk, madvise is not among them
  kMoved,     // by mremap: [low, high) is empty, `moved_to` has the pages
  kRemoving,  // by madvise: after the event was read, at a moment that the kernel does not tell
};
struct UserfaultEvent {
  PageEvent what;
  std::uintptr_t low, high;
  std::uintptr_t moved_to;
};

// A descriptor that reports all of these, or a negative errno: -ENOSYS and -EINVAL from kernels
// that can't, -EPERM from a sandbox.
int userfault_open();
// Whole pages. -EINVAL: not memory that can be watched; -EBUSY: another descriptor watches it.
int userfault_register(int fd, std::uintptr_t low, std::size_t length);
int userfault_unregister(int fd, std::uintptr_t low, std::size_t length);

// 0 when no change of a registered range is under way whose event has not been read; -EAGAIN when
// one is; another error when the descriptor is no userfaultfd (any more).
//
// A change is under way from before the mapping goes until the event was read, so a thread that has
// been given addresses by mmap, and then finds 0 here, knows that the events of all earlier
// mappings there were read. No locks, no look at any page; one system call.
int userfault_settled(int fd);

// Whether an event is there that has not been read. Waits for none.
bool userfault_has_event(int fd);

enum class Ready : std::uint8_t { kEvents, kStop, kBroken };
// Waits for events, or until `stop_fd` is readable.
Ready userfault_wait(int fd, int stop_fd);
// Reads events that are there; how many, at most `most`. The threads that wait for them go on.
std::size_t userfault_read(int fd, UserfaultEvent* events, std::size_t most);

// Whether all of [low, high) is mapped, private and anonymous: none but this process's own calls
// for these addresses can change its pages. `maps_fd` is of /proc/self/maps. One call for each
// mapping since Linux 6.11; before, a read of the whole file up to there.
bool is_private_anonymous(int maps_fd, std::uintptr_t low, std::uintptr_t high);
// Unregisters whatever is registered, anywhere in the process.
void userfault_unregister_all(int fd, int maps_fd);

// How many mappings a process may have (vm.max_map_count).
std::uint64_t most_mappings();

// eventfd(2): for userfault_wait().
int event_open();
void event_raise(int fd);

}  // namespace rdmalloc::os
