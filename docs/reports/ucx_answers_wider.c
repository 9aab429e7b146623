/* What does UCX's cache map when it is asked for less? docs/reports/wider-than-asked.md.
 *
 *   cc -O2 ucx_answers_wider.c -o ucx_answers_wider -lucp
 *   ./ucx_answers_wider
 *
 * It maps pages 0 to 15 and 8 to 23 and asks UCX what it has mapped. Exit status 1 when that is
 * more than was asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

enum { kPage = 4096, kPages = 24 };
static char* block;

static ucp_context_h open_context(void) {
  ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
  ucp_context_h context = NULL;
  return ucp_init(&params, NULL, &context) == UCS_OK ? context : NULL;
}

static ucp_mem_h map(ucp_context_h context, int page, int pages) {
  ucp_mem_map_params_t params = {
      .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
      .address = block + page * kPage,
      .length = (size_t)pages * kPage};
  ucp_mem_h mapped = NULL;
  if (ucp_mem_map(context, &params, &mapped) != UCS_OK) exit(2);
  return mapped;
}

/* Whether it is more than was asked for. */
static int look(ucp_mem_h mapped, int page, int pages) {
  ucp_mem_attr_t is = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
  if (ucp_mem_query(mapped, &is) != UCS_OK) exit(2);
  const int first = (int)(((char*)is.address - block) / kPage);
  const int last = (int)(((char*)is.address + is.length - 1 - block) / kPage);
  printf("asked for pages %d to %d: mapped are %d to %d\n", page, page + pages - 1, first, last);
  return first < page || last > page + pages - 1;
}

int main(void) {
  ucp_context_h context = open_context();
  if (context == NULL) return 2;
  printf("UCX %s\n", ucp_get_version_string());
  block = aligned_alloc(kPage, kPages * kPage);
  if (block == NULL) return 2;
  memset(block, 1, kPages * kPage);
  ucp_mem_h first = map(context, 0, 16);
  int is_wider = look(first, 0, 16);
  ucp_mem_h second = map(context, 8, 16); /* the upper half of the first, and 8 pages more */
  is_wider |= look(second, 8, 16);
  ucp_mem_unmap(context, first);
  ucp_mem_h third = map(context, 20, 1);
  is_wider |= look(third, 20, 1);
  ucp_mem_unmap(context, third);
  ucp_mem_unmap(context, second);
  ucp_cleanup(context);
  free(block);
  return is_wider;
}
