// SPDX-License-Identifier: BSD-3-Clause
//
// A library whose constructor does what the program that loads it says: loader_lock.cc.
extern void run_in_constructor(void);
__attribute__((constructor)) static void begin(void) {
  run_in_constructor();
}
