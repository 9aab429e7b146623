// The dynamic symbols of what is loaded, read where the loader left them: its own functions take
// its lock, which a dlopen() holds while constructors run.
#pragma once

#include <link.h>
#include <string.h>

#include <cstdint>

namespace rdmalloc {

class SymbolTables {
 public:
  explicit SymbolTables(const dl_phdr_info& info) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = info.dlpi_phdr[i];
      if (segment.p_type == PT_DYNAMIC)
        read_tables(info.dlpi_addr, reinterpret_cast<ElfW(Dyn)*>(info.dlpi_addr + segment.p_vaddr));
    }
  }
  explicit SymbolTables(const link_map& map) {
    if (map.l_ld != nullptr) read_tables(map.l_addr, map.l_ld);
  }

  // Where it defines this name, or nullptr.
  void* find(const char* name) const {
    if (symbols_ == nullptr || names_ == nullptr) return nullptr;
    if (gnu_hash_ != nullptr) return find_by_gnu_hash(name);
    if (hash_ == nullptr) return nullptr;
    for (std::uint32_t i = 0; i < hash_[1]; ++i)
      if (is_it(i, name)) return address_of(i);
    return nullptr;
  }

 private:
  void read_tables(ElfW(Addr) base, const ElfW(Dyn) * entry) {
    base_ = base;
    for (; entry->d_tag != DT_NULL; ++entry) {
      ElfW(Addr) at = entry->d_un.d_ptr;
      // The kernel's own library is not relocated in place.
      if (at < base) at += base;
      if (entry->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const ElfW(Sym)*>(at);
      if (entry->d_tag == DT_STRTAB) names_ = reinterpret_cast<const char*>(at);
      if (entry->d_tag == DT_GNU_HASH) gnu_hash_ = reinterpret_cast<std::uint32_t*>(at);
      if (entry->d_tag == DT_HASH) hash_ = reinterpret_cast<std::uint32_t*>(at);
    }
  }
  bool is_it(std::uint32_t index, const char* name) const {
    const ElfW(Sym)& symbol = symbols_[index];
    return symbol.st_shndx != SHN_UNDEF && strcmp(names_ + symbol.st_name, name) == 0;
  }
  void* address_of(std::uint32_t index) const {
    return reinterpret_cast<void*>(base_ + symbols_[index].st_value);
  }
  // By the table that linkers make today (https://flapenguin.me/elf-dt-gnu-hash describes it).
  void* find_by_gnu_hash(const char* name) const {
    std::uint32_t hash = 5381;
    for (const char* c = name; *c != 0; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
    const std::uint32_t* head = gnu_hash_;
    std::uint32_t buckets = head[0], first = head[1], bloom_words = head[2];
    auto* bloom = reinterpret_cast<const ElfW(Addr)*>(head + 4);
    auto* bucket = reinterpret_cast<const std::uint32_t*>(bloom + bloom_words);
    const std::uint32_t* chain = bucket + buckets;
    if (buckets == 0) return nullptr;
    std::uint32_t index = bucket[hash % buckets];
    if (index < first) return nullptr;
    for (;; ++index) {
      std::uint32_t here = chain[index - first];
      if ((here | 1) == (hash | 1) && is_it(index, name)) return address_of(index);
      if ((here & 1) != 0) return nullptr;
    }
  }

  ElfW(Addr) base_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;
  const std::uint32_t* hash_ = nullptr;
};

}  // namespace rdmalloc
