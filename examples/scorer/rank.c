/* Scores three candidates for one user with the model of several outputs of docs/serving.md, whose
 * inputs are x_ids and x_row_splits. Prints a line for each candidate: the first float of each
 * output.
 *
 *     cc rank.c -o rank $(pkg-config --cflags --libs twml_ops_scorer)
 *     ./rank served/labels
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "twml_ops_scorer.h"

enum { CANDIDATES = 3 };

int main(int argc, char** argv) {
  char error[256] = "";
  twml_ops_scorer* scorer;
  twml_ops_output output;
  /* The user has the entry 3, the candidates have 15, none, and 92 and 65. */
  const int64_t user_ids[] = {3}, user_splits[] = {0, 1};
  const int64_t ids[] = {15, 92, 65}, row_splits[] = {0, 1, 1, 3};
  const twml_ops_array user[] = {{user_ids, 1, NULL, 0}, {user_splits, 2, NULL, 0}};
  const twml_ops_array candidates[] = {{ids, 3, NULL, 0}, {row_splits, CANDIDATES + 1, NULL, 0}};
  twml_ops_request request;
  int64_t width, b, i;
  int32_t failed;
  float* out;

  if (argc != 2) return 2;
  if (twml_ops_scorer_load(argv[1], &scorer, error, sizeof(error)) != TWML_OPS_SCORER_OK) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  width = twml_ops_scorer_output_width(scorer); /* of all outputs together */
  out = width < 0 ? NULL : malloc(CANDIDATES * (size_t)width * sizeof(float));
  memset(&request, 0, sizeof(request));
  request.num_rows = CANDIDATES;
  request.user = user; /* both in the order of twml_ops_scorer_input */
  request.arrays = candidates;
  request.num_arrays = 2;
  failed = out == NULL || twml_ops_scorer_predict(scorer, &request, out, CANDIDATES * width, error,
                                                  sizeof(error)) != TWML_OPS_SCORER_OK;
  if (failed) fprintf(stderr, "%s\n", error);
  for (b = 0; b < CANDIDATES && !failed; ++b) {
    for (i = 0; twml_ops_scorer_output(scorer, i, &output) == TWML_OPS_SCORER_OK; ++i) {
      printf("%s %.9g ", output.name, out[b * width + output.first]);
    }
    printf("\n");
  }
  free(out);
  twml_ops_scorer_free(scorer);
  return failed;
}
