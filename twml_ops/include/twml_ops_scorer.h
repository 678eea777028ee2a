/* Predictions of a model that twml_ops.export.to_scorer wrote, from C and every language that calls
 * C.
 *
 * Thread safety: any number of threads may call every function with the same scorer or the same
 * threads at the same time, except the functions that free them. A child of fork() may use the
 * scorers and the threads of its parent, whatever the parent's other threads do: it has threads and
 * caches of its own.
 *
 * Errors: a function that can fail returns 0 (TWML_OPS_SCORER_OK) on success and writes a message,
 * cut to error_size bytes and ended by a zero byte, to `error` otherwise. `error` may be null if
 * error_size is 0. A failed call has changed nothing, except that the content of `out` is
 * undefined.
 */
#ifndef TWML_OPS_SCORER_H_
#define TWML_OPS_SCORER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TWML_OPS_SCORER_API __attribute__((visibility("default")))
#else
#define TWML_OPS_SCORER_API
#endif

/* The version of this interface. It changes if a program has to be compiled anew. */
#define TWML_OPS_SCORER_ABI_VERSION 1
TWML_OPS_SCORER_API int32_t twml_ops_scorer_abi_version(void);

enum {
  TWML_OPS_SCORER_OK = 0,
  TWML_OPS_SCORER_INVALID = 1, /* an argument, a folder or a request is invalid */
  TWML_OPS_SCORER_OUT_OF_MEMORY = 2,
  TWML_OPS_SCORER_UNREADABLE = 3 /* a file with a table was changed or cannot be read any more */
};

/* A model. */
typedef struct twml_ops_scorer twml_ops_scorer;

/* Threads that scorers may use beside the calling thread. */
typedef struct twml_ops_threads twml_ops_threads;

/* Reads the model in a folder. Its tables are mapped: the files must not be changed while the model
 * is in use. Write new weights to a new folder, and call twml_ops_scorer_reload. */
TWML_OPS_SCORER_API int32_t twml_ops_scorer_load(const char* folder, twml_ops_scorer** scorer,
                                                 char* error, size_t error_size);

/* Where the large tables of a model are. */
enum {
  TWML_OPS_TABLES_MAPPED = 0, /* in their files, mapped into memory */
  TWML_OPS_TABLES_MEMORY = 1, /* in memory of the process */
  TWML_OPS_TABLES_FILE = 2    /* in their files; a cache has the rows that are used most */
};

/* Options of twml_ops_scorer_open. Initialize it with zeros, set `size`, and set what is needed. */
typedef struct {
  size_t size;     /* sizeof(twml_ops_scorer_options) */
  int32_t storage; /* TWML_OPS_TABLES_MAPPED and so on */
  /* Of TWML_OPS_TABLES_FILE alone: */
  int32_t direct;           /* whether reads go past the page cache, if the file system can do it */
  int32_t queue_depth;      /* reads of one request that run at the same time; 0: 64 */
  int64_t cache_bytes;      /* memory for the rows that are used most; 0: 256 MiB */
  int64_t sums_cache_bytes; /* memory for sums by the list of their ids and values; 0: none */
  int64_t least_bytes;      /* smaller tables are in memory; 0: 1 MiB */
} twml_ops_scorer_options;

/* twml_ops_scorer_load with options, which also hold for the models that replace it. Null: the
 * defaults. */
TWML_OPS_SCORER_API int32_t twml_ops_scorer_open(const char* folder,
                                                 const twml_ops_scorer_options* options,
                                                 twml_ops_scorer** scorer, char* error,
                                                 size_t error_size);

/* What was read of tables in files since the current model was loaded. Set `size` before the call.
 */
typedef struct {
  size_t size;          /* sizeof(twml_ops_scorer_statistics) */
  int64_t entries;      /* ids whose rows were added up or copied */
  int64_t rows;         /* different rows of each request */
  int64_t hits;         /* of these, rows that were in the cache, */
  int64_t misses;       /* and rows that were not */
  int64_t reads;        /* of files; a read may have several rows */
  int64_t bytes_read;   /* by these */
  int64_t bytes_needed; /* of the rows that were read */
  int64_t sum_hits;     /* sums that were in the cache of sums, */
  int64_t sum_misses;   /* and sums that were not */
} twml_ops_scorer_statistics;

TWML_OPS_SCORER_API int32_t twml_ops_scorer_get_statistics(const twml_ops_scorer* scorer,
                                                           twml_ops_scorer_statistics* statistics,
                                                           char* error, size_t error_size);

/* Replaces the model by that of another folder, with the same inputs and the same outputs. Requests
 * that have begun end with the old model, whose memory is freed with the last of them. */
TWML_OPS_SCORER_API int32_t twml_ops_scorer_reload(twml_ops_scorer* scorer, const char* folder,
                                                   char* error, size_t error_size);

/* No call with the scorer may be in progress. Null is ignored. */
TWML_OPS_SCORER_API void twml_ops_scorer_free(twml_ops_scorer* scorer);

/* Threads for twml_ops_scorer_predict: the calling thread and num_threads - 1 others, at most 1023,
 * and fewer if the system does not allow more. Returns null if there is no memory. */
TWML_OPS_SCORER_API twml_ops_threads* twml_ops_threads_new(int32_t num_threads);
TWML_OPS_SCORER_API void twml_ops_threads_free(twml_ops_threads* threads);

/* What the items of an array are. B is the number of rows. */
enum {
  TWML_OPS_FLOATS = 0,     /* float [B, width] */
  TWML_OPS_INTEGERS = 1,   /* int64_t [B, width] */
  TWML_OPS_BOOLS = 2,      /* uint8_t [B, width], 0 or 1 */
  TWML_OPS_STRINGS = 3,    /* [B, width] strings */
  TWML_OPS_IDS = 4,        /* int64_t [K]: the ids of the entries of all rows */
  TWML_OPS_VALUES = 5,     /* float [K]: the values of these entries */
  TWML_OPS_ROW_SPLITS = 6, /* int64_t [B + 1]: row b has the entries row_splits[b] to
                              row_splits[b + 1] */
  TWML_OPS_BAG_STRINGS = 7 /* K strings: the entries of all rows */
};

/* The two sets of arrays that a request may have. */
enum {
  TWML_OPS_FEATURES = 0, /* the inputs of the model */
  TWML_OPS_COLUMNS = 1 /* raw columns; there are none unless the model was exported with a schema */
};

typedef struct {
  const char* name; /* valid until the scorer is freed or reloaded */
  int32_t kind;     /* TWML_OPS_FLOATS and so on */
  int64_t width;    /* of a dense array, -1: any; of strings. 0 for other arrays. */
} twml_ops_input;

/* The number of arrays of a request; -1 if the scorer is null, there is no such set, or, after a
 * fork, no memory. */
TWML_OPS_SCORER_API int64_t twml_ops_scorer_num_inputs(const twml_ops_scorer* scorer, int32_t set);

/* Describes array i of a request. Fails if there is none, or an argument is null. */
TWML_OPS_SCORER_API int32_t twml_ops_scorer_input(const twml_ops_scorer* scorer, int32_t set,
                                                  int64_t i, twml_ops_input* input);

/* The number of floats that a row gets; -1 if it depends on the request, or the scorer is null. */
TWML_OPS_SCORER_API int64_t twml_ops_scorer_output_width(const twml_ops_scorer* scorer);

/* An output of the model. A model with several labels has an output for each, and a prediction has
 * their floats one after the other. */
typedef struct {
  const char* name; /* valid until the scorer is freed or reloaded */
  int64_t first;    /* the position of its first float among the floats of a row */
  int64_t width;    /* the number of its floats; -1: it depends on the request */
} twml_ops_output;

/* The number of outputs, at least 1; -1 if the scorer is null. */
TWML_OPS_SCORER_API int64_t twml_ops_scorer_num_outputs(const twml_ops_scorer* scorer);

/* Describes output i. Fails if there is none, or an argument is null. */
TWML_OPS_SCORER_API int32_t twml_ops_scorer_output(const twml_ops_scorer* scorer, int64_t i,
                                                   twml_ops_output* output);

/* An array of a request. */
typedef struct {
  const void* data;       /* the items; of strings: the bytes of all of them */
  int64_t size;           /* the number of items, or of strings */
  const int64_t* offsets; /* of strings, [size + 1]: string i has the bytes offsets[i] to
                             offsets[i + 1]; null otherwise */
  int64_t num_bytes;      /* of strings: the size of `data` */
} twml_ops_array;

/* Calls body(context, begin, end) on ranges that cover [0, total), on any threads, and returns when
 * all calls are done. cost_per_unit is about the nanoseconds of one unit. */
typedef void (*twml_ops_body)(void* context, int64_t begin, int64_t end);
typedef void (*twml_ops_parallel_for)(void* pool, int64_t total, int64_t cost_per_unit,
                                      twml_ops_body body, void* context);

/* A request. Initialize it with zeros, and set what is needed. */
typedef struct {
  int32_t set;                  /* TWML_OPS_FEATURES or TWML_OPS_COLUMNS */
  int64_t num_rows;             /* B */
  const twml_ops_array* arrays; /* in the order of twml_ops_scorer_input */
  int64_t num_arrays;
  /* For a ranking request, the user's part of each array, num_arrays in number; null otherwise. The
   * user has one row, which all B rows share. A row of a sparse batch has the user's entries,
   * followed by its own; either part may be empty. Of all other arrays one of the two parts is
   * given, and the other is zeros. */
  const twml_ops_array* user;
  /* Threads that share the rows: at most one of the two. None: the calling thread computes all
   * rows. The result does not depend on it. */
  twml_ops_threads* threads;
  twml_ops_parallel_for parallel_for;
  void* pool; /* the first argument of parallel_for */
} twml_ops_request;

/* Writes the predictions, float [B, width]. out_size is the number of floats of `out`. */
TWML_OPS_SCORER_API int32_t twml_ops_scorer_predict(const twml_ops_scorer* scorer,
                                                    const twml_ops_request* request, float* out,
                                                    int64_t out_size, char* error,
                                                    size_t error_size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TWML_OPS_SCORER_H_ */
