/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A library with thread-local variables, of which malloc_late_test.cc loads many copies.
 * Initial-exec ones need room in the static TLS block, whose spare part is small and for all
 * libraries together. HOG_FIRST=0: without 40 MiB of zeroes in the file. */
#ifndef HOG_FIRST
#define HOG_FIRST 1
#endif
#if HOG_STATIC
static __thread __attribute__((tls_model("initial-exec"))) char variables[HOG_BYTES] = {HOG_FIRST};
#else
static __thread
    __attribute__((tls_model("global-dynamic"))) char variables[HOG_BYTES] = {HOG_FIRST};
#endif

char* tls_hog(void) {
  return variables;
}
