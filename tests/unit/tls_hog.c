/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A library with thread-local variables, of which malloc_late_test.cc loads many copies.
 * Initial-exec ones need room in the static TLS block, whose spare part is small and for all
 * libraries together. */
#if HOG_STATIC
static __thread __attribute__((tls_model("initial-exec"))) char variables[HOG_BYTES] = {1};
#else
static __thread __attribute__((tls_model("global-dynamic"))) char variables[HOG_BYTES] = {1};
#endif

char* tls_hog(void) {
  return variables;
}
