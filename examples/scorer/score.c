/* Scores two rows with the model of docs/serving.md, and names the inputs of a model.
 *
 *     cc score.c -o score $(pkg-config --cflags --libs twml_ops_scorer)
 *     ./score served/scorer
 */
#include <stdio.h>
#include <string.h>

#include "twml_ops_scorer.h"

int main(int argc, char** argv) {
  char error[256];
  twml_ops_scorer* scorer;
  twml_ops_input input;
  /* Row 0 has the entries 3 and 14, row 1 the entry 15. */
  const int64_t ids[] = {3, 14, 15}, row_splits[] = {0, 2, 3};
  const float values[] = {1, 2, 3};
  float out[2];
  int64_t i;

  if (argc != 2) return 2;
  if (twml_ops_scorer_load(argv[1], &scorer, error, sizeof(error)) != TWML_OPS_SCORER_OK) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  for (i = 0; twml_ops_scorer_input(scorer, TWML_OPS_FEATURES, i, &input) == TWML_OPS_SCORER_OK;
       ++i) {
    printf("%s kind %d width %ld\n", input.name, (int)input.kind, (long)input.width);
  }
  {
    const twml_ops_array arrays[] = {
        {ids, 3, NULL, 0}, {values, 3, NULL, 0}, {row_splits, 3, NULL, 0}};
    twml_ops_request request;
    memset(&request, 0, sizeof(request));
    request.num_rows = 2;
    request.arrays = arrays; /* in the order that was printed */
    request.num_arrays = 3;
    if (twml_ops_scorer_predict(scorer, &request, out, 2, error, sizeof(error)) !=
        TWML_OPS_SCORER_OK) {
      fprintf(stderr, "%s\n", error);
      twml_ops_scorer_free(scorer);
      return 1;
    }
  }
  printf("%.9g\n%.9g\n", out[0], out[1]);
  twml_ops_scorer_free(scorer);
  return 0;
}
