/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: registration with io_uring, as fixed buffers. Library librdmalloc-uring.
 */
#ifndef RDMALLOC_REGISTRAR_URING_H
#define RDMALLOC_REGISTRAR_URING_H

#include <rdmalloc/regcache.h>

#ifdef __cplusplus
extern "C" {
#endif

struct io_uring;
struct io_uring_cqe;

/** What a ring may hold: Linux's own limits (IORING_MAX_REG_BUFFERS; 1 GiB for each buffer). */
#define RDMALLOC_URING_MOST_BUFFERS 16384u
#define RDMALLOC_URING_LARGEST ((size_t)1 << 30)

struct rdmalloc_uring_attr {
  size_t size;           /**< sizeof(struct rdmalloc_uring_attr) */
  struct io_uring* ring; /**< the caller's ring, without fixed buffers; NULL: one of our own */
  unsigned entries;      /**< of a ring of our own; 0: 256 */
  unsigned buffers;      /**< slots of the buffer table, at most 16,384; 0: 16,384 */
};

struct rdmalloc_uring;

/** Opens a domain whose registrations are fixed buffers of a ring. A key's `lkey` is the buffer
 *  index for io_uring_prep_write_fixed() and its relatives, on the ring that rdmalloc_uring_ring()
 *  gives. Remote rights are refused (-ENOTSUP). `attr` and `domain_attr` may be NULL. `*uring` is
 *  freed when the domain is closed, with the ring if it is ours.
 *
 *  Submitting is the caller's affair, one thread at a time as liburing asks. Completions of the
 *  ring must be taken by rdmalloc_uring_reap() and nothing else: the kernel announces there that a
 *  buffer is gone, which deregistering waits for. Each announcement has the user_data
 *  0x7264000000000000 + the buffer's index; the caller's requests must have none of these. What is
 *  deregistered takes completions from the ring and keeps the caller's for rdmalloc_uring_reap():
 *  on a ring of the caller's reap all before the domain is closed, or they are lost.
 *
 *  A ring of our own is closed by rdmalloc_quiesce() and made anew by rdmalloc_resume(), in the
 *  same struct io_uring: take what was submitted before. The caller closes a ring of its own, in
 *  the domain's `event` at RDMALLOC_DOMAIN_CLOSE, with no thread in rdmalloc_uring_reap(), and
 *  makes it again at RDMALLOC_DOMAIN_OPEN, in the same struct; else it keeps the process from being
 *  quiesced (-EBUSY).
 *
 *  0; -ENOTSUP: a ring made with IORING_SETUP_SINGLE_ISSUER, which other threads can't register
 *  with, or with IORING_SETUP_CQE32 or IORING_SETUP_CQE_MIXED, whose completions are longer than
 *  rdmalloc_uring_reap() gives, or a kernel before 5.19; -ENOSYS, -EPERM: no io_uring here; -EBUSY:
 *  the ring has buffers already; -EINVAL, -ENOMEM, or rdmalloc_domain_open()'s error. */
RDMALLOC_API int rdmalloc_domain_open_uring(const struct rdmalloc_uring_attr* attr,
                                            const struct rdmalloc_domain_attr* domain_attr,
                                            struct rdmalloc_domain** domain,
                                            struct rdmalloc_uring** uring);

/** The ring to submit to; NULL for NULL. */
RDMALLOC_API struct io_uring* rdmalloc_uring_ring(struct rdmalloc_uring* uring);

/** Takes up to `most` completions. With `wait`, waits for at least one. Returns their number, or a
 *  negative errno: -EAGAIN when it would have to wait and the ring is quiesced, -ENODEV when it is
 *  and the domain is lost, so that no resume makes it again; -EINVAL for NULL (`completions` may be
 *  NULL where `most` is 0). Any thread. */
RDMALLOC_API int rdmalloc_uring_reap(struct rdmalloc_uring* uring, struct io_uring_cqe* completions,
                                     unsigned most, bool wait);

#ifdef __cplusplus
}
#endif
#endif
