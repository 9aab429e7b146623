// Finding libraries that happen to be loaded, by a function that they export: a file may have any
// name. Nothing is linked, nothing is loaded.
#pragma once

#include <cstdint>

namespace rdmalloc {

// Whether loads_so_far() and lie_together() may be called: not in a child of fork, where a thread
// that only the parent has may hold the lock that they take. The others find another way there.
bool is_walk_safe();

// A loaded library, by what it exports, that can't be unloaded meanwhile. Takes the loader's lock,
// at its end too, and allocates: on a program's thread, never during a purge. So does
// keep_loaded().
class HeldLibrary {
 public:
  explicit HeldLibrary(const char* known_by);  // nullptr: none
  HeldLibrary(const HeldLibrary&) = delete;
  HeldLibrary& operator=(const HeldLibrary&) = delete;
  ~HeldLibrary() { release(); }
  // Its function `symbol`, or nullptr; that too when it is not loaded.
  void* symbol(const char* symbol) const;
  bool is_held() const { return handle_ != nullptr; }
  // Unloads it, if it was closed meanwhile.
  void release();
  // Leaves it loaded for good.
  void keep() { handle_ = nullptr; }

 private:
  void* handle_;
};
// Takes the lock that loading a library holds for a moment, but not while constructors run. Any
// thread outside malloc.
bool is_loaded(const char* known_by);
// Keeps a loaded library in memory whatever dlclose() says. False: it can't be kept.
bool keep_loaded(const char* known_by);

// Libraries that were ever loaded, and unloaded. Any thread, as is_loaded().
struct Loads {
  std::uint64_t loaded, unloaded;
  bool operator==(const Loads&) const = default;
};
Loads loads_so_far();

// Whether both addresses lie in the same library, or in the program. Any thread, as is_loaded().
bool lie_together(const void* one, const void* other);

}  // namespace rdmalloc
