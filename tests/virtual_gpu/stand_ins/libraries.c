// cuBLAS, cuBLASLt and cuDNN: what a caller looks at. Products are counted on the clock.
#include "device.h"

int cublasCreate_v2(void **handle) { *handle = new_token(); return SUCCESS; }
int cublasGetVersion_v2(void *handle, int *version) { *version = 130000; return SUCCESS; }
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return SUCCESS; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return SUCCESS; }
const char *cublasGetStatusString(int status) { return "virtual_gpu"; }

// Every product begins with these arguments; what follows differs and is not looked at.
#define PRODUCT(name) int name(void *h, int a, int b, int m, int n, int k) { count_flops(2.0 * m * n * k); return SUCCESS; }
PRODUCT(cublasSgemm_v2) PRODUCT(cublasDgemm_v2) PRODUCT(cublasCgemm_v2) PRODUCT(cublasZgemm_v2)
PRODUCT(cublasSgemmEx) PRODUCT(cublasGemmEx)
int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda,
    long long sa, const void *b, int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int batch) {
  count_flops(2.0 * m * n * k * batch);
  return SUCCESS;
}
int cublasSgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda,
    long long sa, const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int batch) {
  count_flops(2.0 * m * n * k * batch);
  return SUCCESS;
}

typedef struct { uint64_t rows, columns; } Layout;
int cublasLtCreate(void **handle) { *handle = new_token(); return SUCCESS; }
int cublasLtMatrixLayoutCreate(Layout **out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  *out = malloc(sizeof **out);
  **out = (Layout){rows, columns};
  return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { free(layout); return SUCCESS; }
int cublasLtMatmul(void *h, void *d, const void *alpha, const void *a, const Layout *la, const void *b, const Layout *lb,
    const void *beta, const void *c, const Layout *lc, void *out, const Layout *ld) {
  if (la && ld) count_flops(2.0 * ld->rows * ld->columns * (la->rows == ld->rows ? la->columns : la->rows));
  return SUCCESS;
}
// One algorithm, which needs no workspace beyond the one that torch keeps anyway.
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int wanted, Heuristic *found, int *n) {
  memset(found, 0, sizeof *found);
  *n = 1;
  return SUCCESS;
}

size_t cudnnGetVersion(void) { return 91900; } // new enough for its attention
size_t cudnnGetCudartVersion(void) { return 13000; }
int cudnnCreate(void **handle) { *handle = new_token(); return SUCCESS; }
const char *cudnnGetErrorString(int status) { return "virtual_gpu"; }

// cuDNN's graphs, which its attention is made of: every graph has one engine, without choices, notes
// or scratch. Descriptors are empty; the counts say what there is of an attribute.
enum { ENGINE_CONFIGS = 202, INT64 = 3, DESCRIPTOR = 15, INT32 = 23 };
int cudnnBackendCreateDescriptor(int type, void **descriptor) { *descriptor = new_token(); return SUCCESS; }
int cudnnBackendGetAttribute(void *d, int attribute, int type, int64_t room, int64_t *count, void *values) {
  int there = attribute == ENGINE_CONFIGS || (room && (type == INT64 || type == INT32 || type == DESCRIPTOR));
  if (count) *count = there;
  if (room && values && type == INT64) *(int64_t *)values = 0;
  if (room && values && type == INT32) *(int32_t *)values = 0;
  return SUCCESS;
}
int cudnnBackendExecute(void *handle, void *plan, void *pack) { count_launch(0); return SUCCESS; }
