// SPDX-License-Identifier: BSD-3-Clause
//
// I8, looked at from inside a process that runs on rdmalloc: after a storm with purges, the text of
// every library is what its file says, the slots by which libraries call each other's memory
// functions lead where the dynamic linker resolves them, and the break has not moved.
//
//   i8_untouched          ends with 0, or with 1 after naming what was changed
//   i8_untouched patch    the control: patches libc's madvise as fabrics do, and must be told of it
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace {

int changes = 0;

// Compares one executable mapping with its file.
void compare_text(const char* begin, const char* end, unsigned long offset, const char* path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;  // [vdso] and the like
  size_t length = static_cast<size_t>(end - begin);
  void* copy = mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file, static_cast<off_t>(offset));
  struct stat info = {};
  fstat(file, &info);
  close(file);
  if (copy == MAP_FAILED) return;
  size_t in_file = static_cast<size_t>(info.st_size) - offset;
  if (length > in_file) length = in_file;
  if (memcmp(copy, begin, length) != 0) {
    printf("text of %s differs from its file\n", path);
    changes++;
  }
}

int compare_all_text() {
  int compared = 0;
  FILE* maps = fopen("/proc/self/maps", "re");
  char line[4096];
  while (fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin, end, offset;
    char rights[8], path[3000] = "";
    if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %2999s", &begin, &end, rights, &offset, path) < 4)
      continue;
    // Patched text is also found where it stays writable.
    if (rights[2] != 'x' || path[0] != '/') continue;
    compare_text(reinterpret_cast<char*>(begin), reinterpret_cast<char*>(end), offset, path);
    compared++;
  }
  fclose(maps);
  return compared;
}

// The calls that fabrics redirect.
const char* const kCalls[] = {"madvise", "munmap", "mremap", "brk", "sbrk", "shmdt", "mmap"};

template <typename Value>
Value dynamic_value(const dl_phdr_info* object, long tag) {
  for (int i = 0; i < object->dlpi_phnum; i++) {
    if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; entry++)
      if (entry->d_tag == tag) return (Value)entry->d_un.d_ptr;
  }
  return Value{};
}

// libc's first version of all of kCalls, which references to them carry.
#if defined(__aarch64__)
constexpr const char* kLibcVersion = "GLIBC_2.17";
#else
constexpr const char* kLibcVersion = "GLIBC_2.2.5";
#endif

// Whether the slot holds what the dynamic linker resolves the reference to: by its version, which
// may be a definition that stands in front of libc's by its symbol, or without one.
bool is_resolved(void* slot, const char* name) {
  return slot == dlvsym(RTLD_DEFAULT, name, kLibcVersion) || slot == dlsym(RTLD_DEFAULT, name);
}

// One table of relocations: the slots of kCalls must hold what the dynamic linker resolves, or, not
// called yet, point back into their own library.
void check_slots(const dl_phdr_info* object, const ElfW(Rela) * table, size_t bytes, int* checked) {
  auto* symbols = dynamic_value<const ElfW(Sym)*>(object, DT_SYMTAB);
  auto* names = dynamic_value<const char*>(object, DT_STRTAB);
  for (size_t i = 0; table != nullptr && i < bytes / sizeof *table; i++) {
    const char* name = names + symbols[ELF64_R_SYM(table[i].r_info)].st_name;
    for (const char* call : kCalls) {
      if (strcmp(name, call) != 0 || table[i].r_addend != 0) continue;
      void* slot = *reinterpret_cast<void**>(object->dlpi_addr + table[i].r_offset);
      Dl_info home = {}, own = {};
      dladdr(reinterpret_cast<void*>(object->dlpi_addr + table[i].r_offset), &own);
      bool is_lazy = dladdr(slot, &home) != 0 && home.dli_fbase == own.dli_fbase;
      (*checked)++;
      if (is_lazy || is_resolved(slot, name)) continue;
      printf("the slot of %s in %s was changed\n", name, object->dlpi_name);
      changes++;
    }
  }
}

int check_object(dl_phdr_info* object, size_t, void* checked) {
  if (strstr(object->dlpi_name, "vdso") != nullptr) return 0;
  check_slots(object, dynamic_value<const ElfW(Rela)*>(object, DT_JMPREL),
              dynamic_value<size_t>(object, DT_PLTRELSZ), static_cast<int*>(checked));
  check_slots(object, dynamic_value<const ElfW(Rela)*>(object, DT_RELA),
              dynamic_value<size_t>(object, DT_RELASZ), static_cast<int*>(checked));
  return 0;
}

void storm(size_t seed) {
  std::vector<void*> blocks(500);
  for (size_t i = 0; i < 40000; i++) {
    void*& block = blocks[(i * 7919 + seed) % 500];
    free(block);
    size_t bytes = i % 20 == 0 ? i * 37 % 3000000 : i % 3000;
    block = malloc(bytes + 1);
    if (block == nullptr) _exit(3);
    memset(block, 1, bytes < 5000 ? bytes + 1 : 5000);
  }
  for (void* block : blocks) free(block);
}

void patch_madvise() {
  auto address = reinterpret_cast<uintptr_t>(dlsym(RTLD_DEFAULT, "madvise"));
  auto* page = reinterpret_cast<char*>(address & ~uintptr_t{4095});
  if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) _exit(4);
  *reinterpret_cast<unsigned char*>(address) ^= 1;
}

}  // namespace

int main(int argc, char** argv) {
  // As large as a heap of libc's would make it, had it one: the control under libc's malloc.
  void* break_before = sbrk(0);
  std::vector<std::thread> threads;
  for (size_t seed = 1; seed <= 3; seed++) threads.emplace_back(storm, seed);
  storm(0);
  for (std::thread& thread : threads) thread.join();
  if (auto* purge =
          reinterpret_cast<decltype(&rdmalloc_purge)>(dlsym(RTLD_DEFAULT, "rdmalloc_purge")))
    printf("purged=%ld\n", static_cast<long>(purge(0)));
  if (argc > 1 && strcmp(argv[1], "patch") == 0) patch_madvise();
  if (sbrk(0) != break_before) {
    printf("the break moved\n");
    changes++;
  }
  int slots = 0;
  int texts = compare_all_text();
  dl_iterate_phdr(check_object, &slots);
  printf("texts=%d slots=%d changes=%d\n", texts, slots, changes);
  return changes == 0 && texts > 2 && slots > 0 ? 0 : 1;
}
