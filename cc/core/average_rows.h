// Exponential moving averages of the rows of a table, at a cost of O(touched rows).
//
// The average of step t is m a(t - 1) + (1 - m) w(t), where m is the momentum and w(t) the row
// after the update of step t. Between two updates a row is constant, so its average of any number
// of steps follows from one formula: after d steps with the same w it is m^d a + (1 - m^d) w. An
// average is therefore kept as of the step before the last update of its row, and advanced before
// the next one.
#ifndef TWML_CORE_AVERAGE_ROWS_H_
#define TWML_CORE_AVERAGE_ROWS_H_

#include <cstdint>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/sparse_linear.h"
#include "cc/core/status.h"

namespace twml {

// The averages of a table [rows, dim].
struct RowAverages {
  Matrix<float> values;  // [rows, dim]
  // [rows], the step t up to whose predecessor the average of a row counts: values = a(t - 1). 0:
  // the average equals the row, whatever the values are.
  int64_t* steps = nullptr;
};

// Advances the averages of the rows `ids`, which may repeat, to the end of step `step` - 1. Call it
// before the update of step `step`, from 1. A row that has been advanced so far does not change,
// and step 0 changes nothing: the averages begin with the rows as they are after the updates of
// step 0. `log_momentum` is log(m), not positive; -infinity is the momentum 0.
template <class Id, class W>
Status AverageRows(Span<const Id> ids, Matrix<const W> weights, const RowAverages& averages,
                   int64_t step, double log_momentum, const ParallelFor& parallel_for);

}  // namespace twml

#endif  // TWML_CORE_AVERAGE_ROWS_H_
