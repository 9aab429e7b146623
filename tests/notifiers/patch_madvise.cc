// SPDX-License-Identifier: BSD-3-Clause
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/notifiers/stub_ucm.h"

bool patch_madvise([[maybe_unused]] int (*hook)(void*, size_t, int)) {
#if defined(__x86_64__)
  auto* text = static_cast<unsigned char*>(dlsym(RTLD_DEFAULT, "madvise"));
  if (text == nullptr) return false;
  unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};  // by rax
  memcpy(jump + 2, &hook, sizeof hook);
  auto page = reinterpret_cast<uintptr_t>(text) & ~uintptr_t{4095};
  auto* pages = reinterpret_cast<void*>(page);
  if (mprotect(pages, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return false;
  memcpy(text, jump, sizeof jump);
  return mprotect(pages, 8192, PROT_READ | PROT_EXEC) == 0;
#else
  return false;
#endif
}
