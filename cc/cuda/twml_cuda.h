/* The interface of the CUDA library. It is plain C, so that one library serves every TensorFlow,
 * which looks its functions up by name. All pointers are to memory of the device, except the
 *   pointers to the structs themselves, `hyper`, and where a comment says so. All work is queued on
 *     the stream.
 * Functions return a cudaError_t, 0 for success, or TWML_CUDA_OUT_OF_MEMORY. */
#ifndef TWML_CUDA_TWML_CUDA_H_
#define TWML_CUDA_TWML_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TWML_CUDA_ABI 2
#define TWML_CUDA_OUT_OF_MEMORY (-1) /* `allocate` returned null */
#define TWML_CUDA_TOO_LARGE (-2)     /* a batch of 2^31 entries or more */
#define TWML_CUDA_MAX_SLOTS 2
#define TWML_CUDA_MAX_HYPER 8

/* What kernels noticed in their inputs and skipped. The caller clears it with zeros, except
 * first_bad_id, which is all ones, and reads it when the stream has been synchronized. */
typedef struct {
  unsigned long long bad_ids;             /* entries whose id is out of range */
  unsigned long long first_bad_id;        /* the smallest position of such an entry in its batch */
  unsigned long long bad_splits;          /* row splits that decrease or do not fit the entries */
  unsigned long long bad_values;          /* values that are not finite, where that is an error */
  unsigned long long unknown_ids;         /* features without boundaries, where that is an error */
  unsigned long long bad_boundary_splits; /* splits of boundaries, as bad_splits */
} TwmlCudaErrors;

typedef struct {
  void* stream; /* a cudaStream_t */
  /* Working memory, aligned to 256 bytes, which lives until the work of this call is done. */
  void* (*allocate)(void* user, size_t bytes);
  void* user;
  TwmlCudaErrors* errors;
} TwmlCudaCall;

/* A batch in CSR form. Row b has the entries row_splits[b] to row_splits[b + 1]. */
typedef struct {
  const void* ids;           /* int32_t or int64_t */
  int wide_ids;              /* whether they are int64_t */
  const float* values;       /* null: all values are 1 */
  const int64_t* row_splits; /* null: entry k is row k */
  int64_t num_entries;
  int64_t num_rows;
} TwmlCudaBatch;

typedef struct {
  void* data; /* float or bfloat16 [rows, dim] */
  int bfloat16;
  int64_t rows;
  int64_t dim;
} TwmlCudaTable;

/* The entries of a batch, grouped by id with a stable sort. Entries whose id is out of range are
 * behind the last group. */
typedef struct {
  int64_t* ids;        /* [num_entries]; the first *num_groups are set, in ascending order */
  int64_t* splits;     /* [num_entries + 1]; the first *num_groups + 1 are set */
  int64_t* num_groups; /* [1] */
  int32_t* rows;       /* [num_entries], the batch row of each entry */
  float* values;       /* [num_entries], or null for a batch without values */
  int64_t num_entries;
  int64_t num_rows;
} TwmlCudaGroups;

typedef struct {
  int rule; /* UpdateRule */
  float hyper[TWML_CUDA_MAX_HYPER];
  uint64_t seed;
  float* slots[TWML_CUDA_MAX_SLOTS];
} TwmlCudaRule;

int twml_cuda_abi(void);
int twml_cuda_num_devices(void); /* 0 without a driver */

/* Memory of the current device for callers without an allocator of their own. The copy waits for
 * the default stream, and not for streams that are created as non-blocking. */
void* twml_cuda_allocate(size_t bytes);
int twml_cuda_free(void* memory);
int twml_cuda_copy(void* to, const void* from, size_t bytes);
int twml_cuda_copy_async(void* stream, void* to, const void* from, size_t bytes);
int twml_cuda_synchronize(void* stream);

/* The reports of a device, of which the host has a copy. `fetch` queues the update of the copy,
 * `seen` returns it without waiting, and `reset` waits for the stream and clears both. Null: there
 * is no memory. Reports exist until the process ends. */
typedef struct TwmlCudaReports TwmlCudaReports;
TwmlCudaReports* twml_cuda_reports_new(void* stream);
TwmlCudaErrors* twml_cuda_reports_device(TwmlCudaReports* reports);
int twml_cuda_reports_fetch(TwmlCudaReports* reports, void* stream);
TwmlCudaErrors twml_cuda_reports_seen(const TwmlCudaReports* reports);
int twml_cuda_reports_reset(TwmlCudaReports* reports, void* stream);

/* out [num_rows, dim] = batch . table, for `count` batches and tables. */
int twml_cuda_sparse_linear(const TwmlCudaCall* call, int count, const TwmlCudaBatch* batches,
                            const TwmlCudaTable* tables, float* const* outs);

/* out[k] = table[ids[k]] . grad[row of entry k]; 0 for an id out of range. */
int twml_cuda_values_grad(const TwmlCudaCall* call, const TwmlCudaBatch* batch,
                          const TwmlCudaTable* table, const float* grad, float* out);

/* Groups a batch with ids in [0, input_dim). The caller allocates the arrays of `groups`. */
int twml_cuda_group_batch(const TwmlCudaCall* call, const TwmlCudaBatch* batch, int64_t input_dim,
                          const TwmlCudaGroups* groups);

/* Copies the ids of `n` groups, as int64_t if `wide`, else as int32_t. */
int twml_cuda_copy_ids(void* stream, const int64_t* ids, int64_t n, int wide, void* out);

/* rows [*num_groups, dim]: for each group, the sum of its entries' values times their rows of grad
 * [groups.num_rows, dim]. */
int twml_cuda_sum_groups(const TwmlCudaCall* call, const TwmlCudaGroups* groups, const float* grad,
                         int64_t dim, float* rows);

/* The same sums, each used at once to update the row of its id, for `count` tables. */
int twml_cuda_update_groups(const TwmlCudaCall* call, int count, const TwmlCudaGroups* groups,
                            const float* const* grads, const TwmlCudaTable* tables,
                            const TwmlCudaRule* rules);

/* The adapted features of a discretizer: feature_ids [num_features] ascending, boundaries of
 * feature f from splits[f] to splits[f + 1]. A feature whose splits are bad has no boundaries. */
typedef struct {
  const int64_t* feature_ids;
  const float* boundaries;
  const int64_t* splits;
  int64_t num_features;
  int64_t num_boundaries;
  int side;        /* 0: left, 1: right */
  int missing;     /* MissingPolicy */
  int unknown;     /* UnknownPolicy */
  int keep_inputs; /* bool */
  int hashing;     /* whether ids are hashed (HashingDiscretize) */
  int bits;        /* of hashed or passed-through ids */
} TwmlCudaBuckets;

/* Discretizes a batch in two calls. The first writes to ends [num_entries] how many entries the
output has for the entries up to k, and row_splits_out. The caller reads the last of
 * them, allocates the output, and the second call fills it. */
int twml_cuda_discretize_sizes(const TwmlCudaCall* call, const TwmlCudaBatch* batch,
                               const TwmlCudaBuckets* buckets, int64_t* ends,
                               int64_t* row_splits_out);
int twml_cuda_discretize(const TwmlCudaCall* call, const TwmlCudaBatch* batch,
                         const TwmlCudaBuckets* buckets, const int64_t* ends, int64_t* ids_out,
                         float* values_out);

typedef struct {
  float* max_abs;    /* [input_dim]; only written in training */
  const float* bias; /* [input_dim] or null */
  int64_t input_dim;
  float epsilon;
  float decay;
  int nonfinite; /* NonFinitePolicy */
  int training;
} TwmlCudaMaxNorm;

int twml_cuda_max_norm(const TwmlCudaCall* call, const TwmlCudaBatch* batch,
                       const TwmlCudaMaxNorm* norm, float* out, float* scale);

#ifdef __cplusplus
}
#endif

#endif /* TWML_CUDA_TWML_CUDA_H_ */
