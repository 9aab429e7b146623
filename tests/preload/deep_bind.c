// For deep_bind_program.c: frees what libc has allocated, as PHP's extensions do.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int use(void) {
  for (int i = 0; i < 100; i++) {
    char* text = NULL;
    if (asprintf(&text, "%0*d", i * 10 + 1, i) != i * 10 + 1) return 1;
    free(text);
    free(strdup("what libc gets from the program's malloc"));
  }
  char* grown = realloc(strdup("the same"), 5000);
  free(grown);
  return grown == NULL;
}
