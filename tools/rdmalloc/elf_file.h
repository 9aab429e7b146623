// What an ELF file says of itself, as far as the loader's behaviour depends on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rdmalloc::tool {

struct ElfFile {
  int bits = 0;                      // 32 or 64
  bool is_little_endian = false;     // of the other order nothing below is read but the machine
  std::uint16_t machine = 0;         // EM_X86_64
  std::uint16_t type = 0;            // ET_EXEC, ET_DYN
  std::string interpreter;           // the loader's path; empty in static programs and in libraries
  std::vector<std::string> needed;   // DT_NEEDED, in order
  std::vector<std::string> defined;  // names of the dynamic symbols that it defines
  bool has_our_malloc = false;       // librdmalloc's own note, which lies beside malloc
};

// Nothing when the file can't be read or is no ELF file. What is cut short or contradicts itself is
// left out, never followed.
std::optional<ElfFile> read_elf(const std::string& path);

bool defines(const ElfFile& file, const char* symbol);

// "64-bit x86-64"; a machine without a name here has its number.
std::string architecture_of(const ElfFile& file);

}  // namespace rdmalloc::tool
