// What plugin.cc uses of QEMU's plugin interface, version 1 (QEMU 6 to 8; Debian 12 has 7.2).
// Debian packages no header for it. QEMU exports the functions to the modules that it loads.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

using qemu_plugin_id_t = std::uint64_t;
struct qemu_plugin_tb;    // a block of the program's instructions that is about to be translated
struct qemu_plugin_insn;  // one of them
struct qemu_info_t;

enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };  // the callback reads no registers
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_RW = 3 };    // called for loads and for stores

using qemu_plugin_meminfo_t = std::uint32_t;
using Translated = void (*)(qemu_plugin_id_t, qemu_plugin_tb*);
using Accessed = void (*)(unsigned thread, qemu_plugin_meminfo_t, std::uint64_t address,
                          void* data);
using Called = void (*)(qemu_plugin_id_t, unsigned thread, std::int64_t number, std::uint64_t,
                        std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                        std::uint64_t, std::uint64_t);
using Returned = void (*)(qemu_plugin_id_t, unsigned thread, std::int64_t number,
                          std::int64_t result);
using Ended = void (*)(qemu_plugin_id_t, void* data);

std::size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb*);
qemu_plugin_insn* qemu_plugin_tb_get_insn(const qemu_plugin_tb*, std::size_t number);
std::uint64_t qemu_plugin_insn_vaddr(const qemu_plugin_insn*);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);  // also of an atomic read-modify-write
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, Translated);
void qemu_plugin_register_vcpu_mem_cb(qemu_plugin_insn*, Accessed, qemu_plugin_cb_flags,
                                      qemu_plugin_mem_rw, void* data);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, Called);
void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t, Returned);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, Ended, void* data);

// What QEMU looks for in a plugin.
extern __attribute__((visibility("default"))) int qemu_plugin_version;
__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t, const qemu_info_t*,
                                                               int argc, char** argv);

}  // extern "C"
