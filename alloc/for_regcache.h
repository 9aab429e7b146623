// All of the allocator that regcache/ may use, room by room: each header is followed by the names
// that the cache takes from it. Nothing else of alloc/ is regcache's, beside the public rdmalloc.h;
// tests/structure/layers_test.py compares both the headers and the names with what the code uses.
//
// To take one thing more: put its name here, in the same commit, and say there why the public
// interface will not do. The libraries of regcache/registrars/ may have core/sized_struct.h alone.
#pragma once

#include "alloc/os/cancel.h"
//   NoCancelScope
#include "alloc/os/path.h"
//   Path
#include "alloc/os/fault.h"
//   Site should_fail
#include "alloc/os/file.h"
//   close_file each_open_file moved_away open_to_read read_file read_some_at threads_named try_read
#include "alloc/os/memory.h"
//   LockedMemory address_space_left_bytes locked_memory memory_limit_bytes
#include "alloc/os/os.h"
//   advise_huge commit decommit futex_wait futex_wake map_metadata
//   monotonic_ns page_bytes process_id processors_allowed reserve reserve_over sleep_ns thread_id
//   unreserve wipe_on_fork
#include "alloc/os/rounding.h"
//   round_down round_up
#include "alloc/os/populate.h"
//   populate_foreign populate_pages
#include "alloc/os/userfault.h"
//   PageEvent Ready UserfaultEvent event_open event_raise is_private_anonymous most_mappings
//   userfault_has_event userfault_open userfault_read userfault_register userfault_settled
//   userfault_unregister userfault_unregister_all userfault_wait
#include "alloc/os/at_start.h"
//   RDMALLOC_AT_START
#include "alloc/core/helper_threads.h"
//   HelperStack are_only_helpers_left helper_thread_begins helper_thread_create helper_thread_ends
//   helper_thread_mask helper_thread_remedy helper_threads last_thread_tick_ns loader_may_be_locked
//   notify_first_thread_ends
#include "alloc/core/lock.h"
//   Lock LockGuard assert_no_lock_held thread_id
#include "alloc/core/next_definition.h"
//   next_definition
#include "alloc/core/quarantine.h"
//   forget_quarantined_bytes note_quarantined
#include "alloc/core/report.h"
//   Message report_fatal_address report_warning
#include "alloc/core/size_class.h"
//   kChunkBytes kClasses kSliceShift
#include "alloc/core/sized_struct.h"
//   check_struct read_struct write_struct
#include "alloc/core/symbol_tables.h"
//   SymbolTables
#include "alloc/core/init.h"
//   ensure_initialised ensure_settings
#include "alloc/core/fork.h"
//   count_after_fork fork_check
#include "alloc/process/fork.h"
//   fork_wipe_again
#include "alloc/pages/arena.h"
//   arena arena_may_be_huge
#include "alloc/pages/places.h"
//   page_heap_keep_places
#include "alloc/purge/purge.h"
//   purge_freeze purge_hold purge_pause purge_request_all purge_resume purge_thaw
//   purge_thread_start
#include "alloc/pages/events.h"
//   PageListener events_listen is_in_page_event
#include "alloc/pages/purge_turn.h"
//   purge_turn_is_mine purge_turn_wait
#include "alloc/heaps/heap.h"
//   Heap HeapRegion heap_of_handle heaps_bind_again
#include "alloc/heaps/heap_registrar.h"
//   HeapRegistrar RegionLimits heap_registrar
#include "alloc/core/options.h"
//   ForeignMode NotifyMode Options has_purge_thread options
#include "alloc/api/deep_binds.h"
//   deep_binds
#include "alloc/api/notified.h"
//   ranges_notified
#include "alloc/api/registration_statistics.h"
//   RegistrationCounter RegistrationGroup RegistrationStatistics kMostRegistrationCounters
//   kMostRegistrationGroups registration_statistics
#include "alloc/interpose/foreign_calls.h"
//   check_foreign_call kChecksForeignCalls
#include "alloc/interpose/next_of.h"
//   RDMALLOC_FINDS next_of
