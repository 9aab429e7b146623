// The dlcloses under way, and the threads inside a function of another library.
//
// Nothing is attached while a dlclose is under way: a library whose destructors run is still found,
// and to hold it does not keep it. A thread that notifies calls no function that may vanish then.
// An attach counts among those under way while it lets go of the library, which unloads it if it
// was closed meanwhile.
#pragma once

#include <cstdint>

#include "regcache/core/loaded_library.h"

namespace rdmalloc {

// Once a library is attached or closed: children of fork count what they have themselves.
void count_anew_in_children();

// seq_cst, all of these: is_closing() pairs with begin_close(), which finds a thread that notifies,
// or is found by it.
bool is_closing();
void begin_close();
// `must_look`: what is loaded is to be looked at again, by the last of those under way.
void end_close(bool must_look);
void begin_notifying();
void end_notifying();
bool is_any_notifying();

// Refuses an attach while a dlclose is under way, the last of which then looks again. *before: for
// the two below.
bool may_attach(std::uint64_t* before);
// To let go of a library, until end_close(). Returns whether no dlclose has begun since.
bool begin_letting_go(std::uint64_t before);
bool has_close_begun_since(std::uint64_t before);

// A library held for a look at it. Its end may be what unloads it, and libraries that it needs, so
// it counts as a dlclose() does. Use as HeldLibrary.
class LookedAtLibrary {
 public:
  explicit LookedAtLibrary(const char* known_by);
  LookedAtLibrary(const LookedAtLibrary&) = delete;
  LookedAtLibrary& operator=(const LookedAtLibrary&) = delete;
  ~LookedAtLibrary();
  // A dlclose() is under way, the last of which looks again: none is held.
  bool is_refused() const { return is_refused_; }
  void* symbol(const char* symbol) const { return library_.symbol(symbol); }

 private:
  std::uint64_t closes_before_;
  bool is_refused_;
  HeldLibrary library_;
};

}  // namespace rdmalloc
