/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A copy of a file through a few registered buffers: a chunk that finds none waits for its turn,
 * and the end of a write starts the next read.
 *
 *     cc regcache_pool.c $(pkg-config --cflags --libs rdmalloc rdmalloc-uring) -luring
 *     ./a.out FROM TO
 */
#include <fcntl.h>
#include <liburing.h>
#include <rdmalloc/registrar_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kChunk = 64 * 1024, kBuffers = 8 };

struct copy {
  struct rdmalloc_pool* pool;
  struct io_uring* ring;
  int from, to, error;
};

/* One chunk of the file, from its wait for a buffer to the end of its write. */
struct chunk {
  struct rdmalloc_pool_waiter waiter;
  struct copy* copy;
  struct rdmalloc_buffer* buffer;
  off_t at;
  ssize_t length;
};

/* Called at once, or when another caller has put a buffer: inside rdmalloc_pool_put(), on this
 * thread. */
static void start(struct rdmalloc_pool_waiter* waiter, struct rdmalloc_buffer* buffer) {
  struct chunk* chunk = waiter->arg;
  struct copy* copy = chunk->copy;
  chunk->buffer = buffer;
  chunk->length = pread(copy->from, buffer->addr, kChunk, chunk->at);
  struct io_uring_sqe* sqe = io_uring_get_sqe(copy->ring);
  if (chunk->length < 0 || sqe == NULL) {
    copy->error = -EIO;
    rdmalloc_pool_put(copy->pool, buffer);
    return;
  }
  /* No look-up: the buffer has its key with it. */
  io_uring_prep_write_fixed(sqe, copy->to, buffer->addr, (unsigned)chunk->length,
                            (unsigned long long)chunk->at, (int)buffer->keys[0].lkey);
  sqe->user_data = (uintptr_t)chunk;
  if (io_uring_submit(copy->ring) < 0) copy->error = -EIO;
}

static int run(struct copy* copy, struct rdmalloc_uring* uring, struct chunk* chunks,
               size_t count) {
  size_t waited = 0;
  for (size_t i = 0; i < count; ++i) {
    chunks[i].copy = copy;
    chunks[i].at = (off_t)(i * kChunk);
    chunks[i].waiter.ready = start;
    chunks[i].waiter.arg = &chunks[i];
    struct rdmalloc_buffer* buffer = NULL;
    int error = rdmalloc_pool_wait(copy->pool, kChunk, &chunks[i].waiter, &buffer);
    if (error == 0)
      start(&chunks[i].waiter, buffer);
    else if (error == -EINPROGRESS)
      ++waited;
    else
      return error;
  }
  for (size_t done = 0; done < count && copy->error == 0; ++done) {
    struct io_uring_cqe cqe;
    int got = rdmalloc_uring_reap(uring, &cqe, 1, true);
    if (got < 0) return got;
    struct chunk* chunk = (struct chunk*)(uintptr_t)cqe.user_data;
    if (cqe.res != chunk->length) return -EIO;
    rdmalloc_pool_put(copy->pool, chunk->buffer); /* starts the chunk that waits longest */
  }
  printf("%zu chunks through %d buffers, %zu of them waited\n", count, kBuffers, waited);
  return copy->error;
}

int main(int argc, char** argv) {
  struct copy copy = {0};
  struct stat about;
  if (argc != 3) {
    fprintf(stderr, "usage: %s FROM TO (is overwritten)\n", argv[0]);
    return 2;
  }
  copy.from = open(argv[1], O_RDONLY);
  copy.to = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (copy.from < 0 || copy.to < 0 || fstat(copy.from, &about) != 0) {
    perror("regcache_pool");
    return 1;
  }
  struct rdmalloc_domain* domain = NULL;
  struct rdmalloc_uring* uring = NULL;
  int error = rdmalloc_domain_open_uring(NULL, NULL, &domain, &uring);
  if (error != 0) {
    fprintf(stderr, "rdmalloc_domain_open_uring: %s\n", strerror(-error));
    return 1;
  }
  struct rdmalloc_pool_attr attr = {.size = sizeof attr,
                                    .small_count = RDMALLOC_POOL_NONE,
                                    .large_bytes = kChunk,
                                    .large_count = kBuffers};
  error = rdmalloc_pool_create(&domain, 1, &attr, &copy.pool);
  if (error == 0) {
    size_t count = ((size_t)about.st_size + kChunk - 1) / kChunk;
    struct chunk* chunks = calloc(count + 1, sizeof *chunks);
    copy.ring = rdmalloc_uring_ring(uring);
    error = chunks == NULL ? -ENOMEM : run(&copy, uring, chunks, count);
    if (error == 0) error = rdmalloc_pool_destroy(copy.pool);
    free(chunks);
  }
  if (error == 0) error = rdmalloc_domain_close(domain);
  if (error != 0) fprintf(stderr, "regcache_pool: %s\n", strerror(-error));
  return error == 0 ? 0 : 1;
}
