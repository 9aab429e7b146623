// A stand-in for SPDK's memory map, as strict as the real one and worse-tempered (fake_spdk.cc):
// what the test asks of the library beside SPDK's own functions.
#pragma once

#include <stdint.h>

// How the next maps behave.
enum FakeSpdkTemper : int {
  kGood = 0,
  kRefusesQuietly,  // 25.09 and later: 0, but no translation
  kRefusesAloud,    // before: an error, and the region stays marked as registered
  kKeepsQuietly,    // unregistering returns 0, but the translation stays
  kKeepsAloud,      // unregistering is an error
};

struct FakeSpdk {
  int temper;
  uint64_t refused_unit;    // the temper shows at this 2 MiB only; 0: at each
  int has_vtophys;          // 0: as without PCI, no address has a physical one
  uint64_t registered;      // regions now
  uint64_t register_calls;  // all, refused ones too
  uint64_t unregister_calls;
  uint64_t wrong_calls;  // unaligned, or of what is not registered, or in part
};
