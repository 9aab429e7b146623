#include "tools/rdmalloc/elf_file.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string_view>
#include <type_traits>

namespace rdmalloc::tool {
namespace {

// A file on disk may be of any size and say anything: each read is bounded by these.
constexpr std::uint64_t kMostHeaders = 1000;
constexpr std::uint64_t kMostBytes = 64ull << 20;  // of one table; libLLVM's strings are 10 MiB

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path, std::ios::binary) {}

  template <typename T>
  bool read(std::uint64_t offset, T* into, std::uint64_t count = 1) {
    static_assert(std::is_trivially_copyable_v<T>);
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(offset));
    file_.read(reinterpret_cast<char*>(into), static_cast<std::streamsize>(sizeof(T) * count));
    return file_.good();
  }

  template <typename T>
  std::vector<T> table(std::uint64_t offset, std::uint64_t bytes) {
    if (bytes > kMostBytes) return {};
    std::vector<T> all(bytes / sizeof(T));
    if (all.empty() || !read(offset, all.data(), all.size())) return {};
    return all;
  }

 private:
  std::ifstream file_;
};

// From the string table, where the offset lies in it and the string ends in it.
std::string string_at(const std::vector<char>& strings, std::uint64_t offset) {
  if (offset >= strings.size()) return {};
  const char* begin = strings.data() + offset;
  return std::string(begin, strnlen(begin, strings.size() - offset));
}

struct Elf32 {
  using Header = Elf32_Ehdr;
  using Program = Elf32_Phdr;
  using Section = Elf32_Shdr;
  using Dynamic = Elf32_Dyn;
  using Symbol = Elf32_Sym;
};
struct Elf64 {
  using Header = Elf64_Ehdr;
  using Program = Elf64_Phdr;
  using Section = Elf64_Shdr;
  using Dynamic = Elf64_Dyn;
  using Symbol = Elf64_Sym;
};

// By sections and not by segments: a dynamic table's addresses need no translation then, and strip
// leaves these sections.
template <typename Elf>
void read_sections(Reader& reader, const typename Elf::Header& header, ElfFile& file) {
  if (header.e_shentsize != sizeof(typename Elf::Section)) return;
  const auto sections = reader.table<typename Elf::Section>(
      header.e_shoff, std::min<std::uint64_t>(header.e_shnum, kMostHeaders) * header.e_shentsize);
  for (const auto& section : sections) {
    if ((section.sh_type != SHT_DYNAMIC && section.sh_type != SHT_DYNSYM) ||
        section.sh_link >= sections.size())
      continue;
    const auto& linked = sections[section.sh_link];
    const auto strings = reader.table<char>(linked.sh_offset, linked.sh_size);
    if (section.sh_type == SHT_DYNAMIC) {
      for (const auto& entry :
           reader.table<typename Elf::Dynamic>(section.sh_offset, section.sh_size))
        if (entry.d_tag == DT_NEEDED) file.needed.push_back(string_at(strings, entry.d_un.d_val));
    } else {
      for (const auto& symbol :
           reader.table<typename Elf::Symbol>(section.sh_offset, section.sh_size))
        if (symbol.st_shndx != SHN_UNDEF)
          file.defined.push_back(string_at(strings, symbol.st_name));
    }
  }
}

// Whether the note of alloc/api/malloc.cc is among these. Each is a header of three words, a name
// and a description, both padded.
bool has_our_note(const std::vector<char>& notes, std::uint64_t alignment) {
  constexpr std::string_view kOurs("rdmalloc", sizeof "rdmalloc");
  const std::uint64_t unit = alignment == 8 ? 8 : 4;
  const auto padded = [unit](std::uint64_t bytes) { return (bytes + unit - 1) / unit * unit; };
  for (std::uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
    Elf64_Nhdr note = {};  // Elf32_Nhdr has the same three words
    std::memcpy(&note, notes.data() + at, sizeof note);
    const std::uint64_t name = at + sizeof note;
    if (note.n_namesz == kOurs.size() && name + kOurs.size() <= notes.size() &&
        std::string_view(notes.data() + name, kOurs.size()) == kOurs)
      return true;
    at = at + padded(sizeof note + note.n_namesz) + padded(note.n_descsz);
  }
  return false;
}

template <typename Elf>
std::optional<ElfFile> read_as(Reader& reader, ElfFile file) {
  typename Elf::Header header = {};
  if (!reader.read(0, &header)) return std::nullopt;
  file.machine = header.e_machine;
  file.type = header.e_type;
  if (!file.is_little_endian) {
    file.machine = static_cast<std::uint16_t>((header.e_machine >> 8) | (header.e_machine << 8));
    return file;
  }
  if (header.e_phentsize == sizeof(typename Elf::Program)) {
    for (const auto& segment : reader.table<typename Elf::Program>(
             header.e_phoff, std::uint64_t{header.e_phnum} * header.e_phentsize)) {
      if (segment.p_type != PT_INTERP && segment.p_type != PT_NOTE) continue;
      const auto bytes = reader.table<char>(segment.p_offset, segment.p_filesz);
      if (segment.p_type == PT_INTERP)
        file.interpreter = string_at(bytes, 0);
      else
        file.has_our_malloc |= has_our_note(bytes, segment.p_align);
    }
  }
  read_sections<Elf>(reader, header, file);
  return file;
}

}  // namespace

std::optional<ElfFile> read_elf(const std::string& path) {
  Reader reader(path);
  unsigned char ident[EI_NIDENT] = {};
  if (!reader.read(0, ident, EI_NIDENT) || std::memcmp(ident, ELFMAG, SELFMAG) != 0)
    return std::nullopt;
  ElfFile file;
  file.is_little_endian = ident[EI_DATA] == ELFDATA2LSB;
  file.bits = ident[EI_CLASS] == ELFCLASS32 ? 32 : 64;
  return file.bits == 32 ? read_as<Elf32>(reader, file) : read_as<Elf64>(reader, file);
}

bool defines(const ElfFile& file, const char* symbol) {
  return std::find(file.defined.begin(), file.defined.end(), symbol) != file.defined.end();
}

std::string architecture_of(const ElfFile& file) {
  const char* name = nullptr;
  switch (file.machine) {
    case EM_X86_64:
      name = "x86-64";
      break;
    case EM_386:
      name = "x86";
      break;
    case EM_AARCH64:
      name = "aarch64";
      break;
    case EM_ARM:
      name = "arm";
      break;
    case EM_PPC64:
      name = "ppc64";
      break;
    case EM_RISCV:
      name = "riscv";
      break;
    case EM_S390:
      name = "s390";
      break;
    default:
      break;
  }
  return fmt::format("{}-bit {}", file.bits,
                     name != nullptr ? name : fmt::format("machine {}", file.machine));
}

}  // namespace rdmalloc::tool
