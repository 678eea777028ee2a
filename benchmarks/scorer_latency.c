/* Latency of requests through the C ABI of the scorer; benchmarks/serving.py compiles and runs it.
 *
 *     scorer_latency MODEL REQUESTS CALLERS THREADS CALLS
 *
 * REQUESTS is a file of int64 numbers: the number of requests, and for each request the number of
 * rows, and for each array its number of items and its bytes, padded to 8. CALLERS threads make
 * CALLS requests each, every one with THREADS threads that share the rows. Prints the 50th and 99th
 * percentile of the latency in microseconds, and the requests per second of all callers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "twml_ops_scorer.h"

#define MAX_ARRAYS 64

typedef struct {
  int64_t rows;
  twml_ops_array arrays[MAX_ARRAYS];
} request_data;

typedef struct {
  const twml_ops_scorer* scorer;
  const request_data* requests;
  int64_t num_requests, num_arrays, calls, width;
  twml_ops_threads* threads;
  pthread_barrier_t* start;
  double* seconds;
  double begin, end;
} caller;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char* message) {
  fprintf(stderr, "%s\n", message);
  exit(1);
}

static void* run(void* argument) {
  caller* c = argument;
  char error[256];
  int64_t most = 0;
  for (int64_t i = 0; i < c->num_requests; ++i) {
    if (c->requests[i].rows > most) most = c->requests[i].rows;
  }
  float* out = malloc(sizeof(float) * (size_t)(most * c->width + 1));
  for (int64_t i = -c->calls / 4 - 2 * c->num_requests; i < c->calls; ++i) {
    if (i == 0) {
      pthread_barrier_wait(c->start);
      c->begin = now();
    }
    const request_data* r = &c->requests[(i + 1000 * c->num_requests * c->calls) % c->num_requests];
    twml_ops_request request;
    memset(&request, 0, sizeof(request));
    request.num_rows = r->rows;
    request.arrays = r->arrays;
    request.num_arrays = c->num_arrays;
    request.threads = c->threads;
    const double before = now();
    if (twml_ops_scorer_predict(c->scorer, &request, out, r->rows * c->width, error,
                                sizeof(error)) != TWML_OPS_SCORER_OK) {
      fail(error);
    }
    if (i >= 0) c->seconds[i] = now() - before;
  }
  c->end = now();
  free(out);
  return NULL;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  if (argc != 6) fail("usage: scorer_latency MODEL REQUESTS CALLERS THREADS CALLS");
  const int64_t callers = atoll(argv[3]), threads = atoll(argv[4]), calls = atoll(argv[5]);
  char error[256];
  twml_ops_scorer* scorer;
  if (twml_ops_scorer_load(argv[1], &scorer, error, sizeof(error)) != TWML_OPS_SCORER_OK) {
    fail(error);
  }
  FILE* file = fopen(argv[2], "rb");
  if (file == NULL) fail("cannot open the requests");
  fseek(file, 0, SEEK_END);
  const size_t size = (size_t)ftell(file);
  rewind(file);
  char* data = malloc(size);
  if (fread(data, 1, size, file) != size) fail("cannot read the requests");
  fclose(file);
  const int64_t num_arrays = twml_ops_scorer_num_inputs(scorer, TWML_OPS_FEATURES);
  if (num_arrays > MAX_ARRAYS) fail("too many arrays");
  const char* at = data;
  const int64_t num_requests = *(const int64_t*)at;
  at += 8;
  request_data* requests = calloc((size_t)num_requests, sizeof(request_data));
  for (int64_t i = 0; i < num_requests; ++i) {
    requests[i].rows = *(const int64_t*)at;
    at += 8;
    for (int64_t a = 0; a < num_arrays; ++a) {
      const int64_t bytes = ((const int64_t*)at)[1];
      requests[i].arrays[a].size = ((const int64_t*)at)[0];
      requests[i].arrays[a].data = at + 16;
      at += 16 + (bytes + 7) / 8 * 8;
    }
  }
  double* seconds = malloc(sizeof(double) * (size_t)(callers * calls));
  caller* all = calloc((size_t)callers, sizeof(caller));
  pthread_t* started = calloc((size_t)callers, sizeof(pthread_t));
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, (unsigned)callers);
  twml_ops_threads* pool = threads > 1 ? twml_ops_threads_new((int32_t)threads) : NULL;
  for (int64_t i = 0; i < callers; ++i) {
    all[i] = (caller){scorer,     requests, num_requests,
                      num_arrays, calls,    twml_ops_scorer_output_width(scorer),
                      pool,       &start,   seconds + i * calls,
                      0,          0};
    pthread_create(&started[i], NULL, run, &all[i]);
  }
  double begin = 0, end = 0;
  for (int64_t i = 0; i < callers; ++i) {
    pthread_join(started[i], NULL);
    if (i == 0 || all[i].begin < begin) begin = all[i].begin;
    if (all[i].end > end) end = all[i].end;
  }
  const int64_t n = callers * calls;
  qsort(seconds, (size_t)n, sizeof(double), compare);
  printf("%.3f %.3f %.1f\n", 1e6 * seconds[n / 2], 1e6 * seconds[n * 99 / 100],
         (double)n / (end - begin));
  twml_ops_threads_free(pool);
  twml_ops_scorer_free(scorer);
  free(started);
  free(all);
  free(seconds);
  free(requests);
  free(data);
  return 0;
}
