// Features of times: the hour, the day of the week and so on, in UTC, of a time that is text.
#ifndef TWML_CORE_TIME_TEXT_H_
#define TWML_CORE_TIME_TEXT_H_

#include <cstdint>
#include <string_view>

#include "cc/core/parallel.h"
#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml {

// What integers of a column of times are. Without a unit they are no times.
enum class TimeUnit : uint8_t {
  kNone,
  kSeconds,  // since 1970, as the following ones
  kMilliseconds,
  kMicroseconds,
  kNanoseconds,
  kDate,  // YYYYMMDD
};

enum class TimePart : uint8_t {
  kHour,        // 0 to 23
  kWeekday,     // 1, Monday, to 7, Sunday
  kMonth,       // 1 to 12
  kHourOfWeek,  // 0, the first hour of Monday, to 167
};

struct TimeFeature {
  TimePart part = TimePart::kHour;
  TimeUnit unit = TimeUnit::kNone;
};

// The feature of the names that schemas have: of twml_ops/data/times.py.
Status MakeTimeFeature(std::string_view part, std::string_view unit, TimeFeature* out);

// One more than the largest value of a part.
int64_t LimitOf(TimePart part);

constexpr int64_t kMissingTime = -1, kUnreadableTime = -2;

// The part of the time that a text is: a number of the unit, of which a fraction is left out, or a
// date, possibly with a time and a zone, in the forms of `times_of_texts` in
// twml_ops/data/text_values.py. kMissingTime: it is empty or a null value. kUnreadableTime: it is
// something else.
int64_t PartOfTime(std::string_view text, TimeFeature feature);

// The same of each of the strings bytes[offsets[i] .. offsets[i + 1]].
template <class Offset>
Status PartsOfTimes(Span<const uint8_t> bytes, Span<const Offset> offsets, TimeFeature feature,
                    const ParallelFor& parallel_for, int64_t* out);

}  // namespace twml

#endif  // TWML_CORE_TIME_TEXT_H_
