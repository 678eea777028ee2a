/* Latency of requests through the C ABI of the scorer; benchmarks/serving.py compiles and runs it.
 *
 *     scorer_latency MODEL REQUESTS CALLERS THREADS SECONDS
 *
 * REQUESTS is a file of int64 numbers: the number of requests, and for each request the number of
 * rows, and for each array its number of items and its bytes, padded to 8. CALLERS threads make
 * requests for SECONDS seconds, every one with THREADS threads that share the rows. The requests of
 * all callers are counted in the same SECONDS, a request at the end in part: a caller that the
 * system starts late would otherwise run alone at the end. Prints the 50th and 99th percentile of
 * the latency in microseconds, the requests per second of all callers, and the CPU time of a
 * request in microseconds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "twml_ops_scorer.h"

#define MAX_ARRAYS 64
#define MAX_SAMPLES 200000 /* of a caller */

typedef struct {
  int64_t rows;
  twml_ops_array arrays[MAX_ARRAYS];
} request_data;

typedef struct {
  const twml_ops_scorer* scorer;
  const request_data* requests;
  int64_t num_requests, num_arrays, width, first;
  double duration;
  twml_ops_threads* threads;
  pthread_barrier_t* start;
  _Atomic double* begin; /* of all callers; 0: none has begun */
  double* seconds;       /* of the first MAX_SAMPLES requests */
  double calls;          /* within the time */
  int64_t num_samples;
  clockid_t cpu_clock; /* of the thread, or of the process if it is the only caller */
  double cpu;
} caller;

static double read_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return read_clock(CLOCK_MONOTONIC); }

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
  int64_t calls = 0, at = c->first;
  double last = 0, before = now(), stop = before + c->duration / 4;
  for (int warm = 0; before < stop || !warm; ++calls) {
    if (!warm && (before >= stop || calls == MAX_SAMPLES)) {
      warm = 1;
      calls = 0;
      pthread_barrier_wait(c->start);
      c->cpu = read_clock(c->cpu_clock);
      before = now();
      double begin = 0;
      if (atomic_compare_exchange_strong(c->begin, &begin, before)) begin = before;
      stop = begin + c->duration;
    }
    const request_data* r = &c->requests[at];
    at = at + 1 < c->num_requests ? at + 1 : 0;
    twml_ops_request request;
    memset(&request, 0, sizeof(request));
    request.num_rows = r->rows;
    request.arrays = r->arrays;
    request.num_arrays = c->num_arrays;
    request.threads = c->threads;
    if (twml_ops_scorer_predict(c->scorer, &request, out, r->rows * c->width, error,
                                sizeof(error)) != TWML_OPS_SCORER_OK) {
      fail(error);
    }
    const double after = now();
    if (calls < MAX_SAMPLES) c->seconds[calls] = after - before;
    last = before;
    before = after;
  }
  c->num_samples = calls < MAX_SAMPLES ? calls : MAX_SAMPLES;
  c->calls = (double)calls;
  const double late = before - stop, of = before - last; /* of the last request */
  c->calls -= late < of ? late / of : 1;
  c->cpu = read_clock(c->cpu_clock) - c->cpu;
  free(out);
  return NULL;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  if (argc != 6) fail("usage: scorer_latency MODEL REQUESTS CALLERS THREADS SECONDS");
  const int64_t callers = atoll(argv[3]), threads = atoll(argv[4]);
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
  double* seconds = malloc(sizeof(double) * (size_t)(callers * MAX_SAMPLES));
  caller* all = calloc((size_t)callers, sizeof(caller));
  pthread_t* started = calloc((size_t)callers, sizeof(pthread_t));
  pthread_barrier_t start;
  _Atomic double begin = 0;
  twml_ops_threads* pool = threads > 1 ? twml_ops_threads_new((int32_t)threads) : NULL;
  for (int64_t i = 0; i < callers; ++i) {
    memset(&all[i], 0, sizeof(all[i]));
    all[i].scorer = scorer;
    all[i].requests = requests;
    all[i].num_requests = num_requests;
    all[i].num_arrays = num_arrays;
    all[i].width = twml_ops_scorer_output_width(scorer);
    all[i].first = i * num_requests / callers;
    all[i].duration = atof(argv[5]);
    all[i].threads = pool;
    all[i].start = &start;
    all[i].begin = &begin;
    all[i].cpu_clock = callers == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_THREAD_CPUTIME_ID;
    all[i].seconds = seconds + i * MAX_SAMPLES;
  }
  pthread_barrier_init(&start, NULL, (unsigned)callers);
  for (int64_t i = 0; i < callers; ++i) {
    pthread_create(&started[i], NULL, run, &all[i]);
  }
  double calls = 0, cpu = 0;
  int64_t samples = 0;
  for (int64_t i = 0; i < callers; ++i) {
    pthread_join(started[i], NULL);
    const int64_t own = all[i].num_samples;
    memmove(seconds + samples, all[i].seconds, sizeof(double) * (size_t)own);
    samples += own;
    calls += all[i].calls;
    cpu += all[i].cpu;
  }
  qsort(seconds, (size_t)samples, sizeof(double), compare);
  printf("%.3f %.3f %.1f %.3f\n", 1e6 * seconds[samples / 2], 1e6 * seconds[samples * 99 / 100],
         calls / atof(argv[5]), 1e6 * cpu / calls);
  twml_ops_threads_free(pool);
  twml_ops_scorer_free(scorer);
  free(started);
  free(all);
  free(seconds);
  free(requests);
  free(data);
  return 0;
}
