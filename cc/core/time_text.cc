#include "cc/core/time_text.h"

#include "cc/core/category_text.h"
#include "cc/core/siphash.h"

namespace twml {
namespace {

constexpr int64_t kSecondsOfDay = 86400;

struct Named {
  std::string_view name;
  int value;
};
constexpr Named kParts[] = {{"hour", static_cast<int>(TimePart::kHour)},
                            {"weekday", static_cast<int>(TimePart::kWeekday)},
                            {"month", static_cast<int>(TimePart::kMonth)},
                            {"hour_of_week", static_cast<int>(TimePart::kHourOfWeek)}};
constexpr Named kUnits[] = {{"", static_cast<int>(TimeUnit::kNone)},
                            {"seconds", static_cast<int>(TimeUnit::kSeconds)},
                            {"milliseconds", static_cast<int>(TimeUnit::kMilliseconds)},
                            {"microseconds", static_cast<int>(TimeUnit::kMicroseconds)},
                            {"nanoseconds", static_cast<int>(TimeUnit::kNanoseconds)},
                            {"YYYYMMDD", static_cast<int>(TimeUnit::kDate)}};

template <size_t N>
int Find(const Named (&all)[N], std::string_view name) {
  for (const Named& one : all) {
    if (one.name == name) return one.value;
  }
  return -1;
}

int64_t FloorDivide(int64_t x, int64_t by) { return x / by - (x % by < 0); }
int64_t FloorModulo(int64_t x, int64_t by) { return x % by + (x % by < 0 ? by : 0); }

// The days since 1970 of a day of a month. "chrono-Compatible
// Low-Level Date Algorithms" (Hinnant, 2013).
int64_t DaysOf(int64_t year, int64_t month, int64_t day) {
  const int64_t y = year - (month <= 2);
  const int64_t era = FloorDivide(y, 400), of_era = y - era * 400;
  const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468 + day - 1;
}

// The month, 1 to 12, of a day since 1970.
int64_t MonthOf(int64_t days) {
  const int64_t of_era = FloorModulo(days + 719468, 146097);
  const int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  const int64_t of_year = of_era - (365 * year + year / 4 - year / 100);
  const int64_t month = (5 * of_year + 2) / 153;
  return month < 10 ? month + 3 : month - 9;
}

// Takes what is expected from the beginning of a text.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool AtEnd() const { return rest_.empty(); }
  char Next() const { return rest_.empty() ? '\0' : rest_[0]; }
  bool NextIsDigit() const { return Next() >= '0' && Next() <= '9'; }

  bool Take(std::string_view expected) {
    if (rest_.substr(0, expected.size()) != expected) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }
  bool TakeOneOf(std::string_view characters, char* taken = nullptr) {
    if (rest_.empty() || characters.find(rest_[0]) == characters.npos) return false;
    if (taken != nullptr) *taken = rest_[0];
    rest_.remove_prefix(1);
    return true;
  }
  // As many digits as there are, up to `most`.
  bool TakeDigits(int least, int most, int64_t* number) {
    int count = 0;
    uint64_t value = 0;  // of at most 19 digits
    for (; count < most && NextIsDigit(); ++count, rest_.remove_prefix(1)) {
      value = value * 10 + static_cast<uint64_t>(rest_[0] - '0');
    }
    *number = static_cast<int64_t>(value);
    return count >= least && *number >= 0;
  }

 private:
  std::string_view rest_;
};

// A whole number and its fraction, of which is returned whether there is one and it is no zero.
bool ReadNumber(std::string_view text, int64_t* number) {
  Reader reader(text);
  char sign = '+', fraction = '0';
  reader.TakeOneOf("+-", &sign);
  if (!reader.TakeDigits(1, 19, number)) return false;
  if (sign == '-') *number = -*number;
  if (reader.Take(".")) {
    while (reader.TakeOneOf("0")) {
    }
    if (sign == '-' && reader.NextIsDigit()) --*number;
    while (reader.TakeOneOf("0123456789", &fraction)) {
    }
  }
  return reader.AtEnd();
}

// False: there is no such day, as 30 February.
bool DateOf(int64_t year, int64_t month, int64_t day, int64_t* seconds) {
  if (month < 1 || month > 12 || day < 1) return false;
  if (day > DaysOf(year + month / 12, month % 12 + 1, 1) - DaysOf(year, month, 1)) return false;
  *seconds = DaysOf(year, month, day) * kSecondsOfDay;
  return true;
}

bool ReadDate(Reader* reader, int64_t* seconds) {
  int64_t first = 0, second = 0, third = 0;
  Reader other = *reader;
  if (other.TakeDigits(4, 4, &first)) {  // the year
    if (!other.TakeOneOf("-/") || !other.TakeDigits(1, 2, &second) || !other.TakeOneOf("-/") ||
        !other.TakeDigits(1, 2, &third)) {
      return false;
    }
    *reader = other;
    return DateOf(first, second, third, seconds);
  }
  char mark = '\0';
  if (!reader->TakeDigits(1, 2, &first) || !reader->TakeOneOf("./", &mark) ||
      !reader->TakeDigits(1, 2, &second) || !reader->Take({&mark, 1}) ||
      !reader->TakeDigits(4, 4, &third) || reader->NextIsDigit()) {
    return false;
  }
  return mark == '.' ? DateOf(third, second, first, seconds)
                     : DateOf(third, first, second, seconds);
}

// A day ends at 24:00, and a minute can have a leap second.
bool IsOnClock(int64_t hour, int64_t minute, int64_t second) {
  return minute < 60 && second <= 60 && (hour < 24 || (hour == 24 && minute + second == 0));
}

// Takes the hour, minute and second that there are. False: no clock shows them.
bool ReadClock(Reader* reader, int64_t* hour, int64_t* seconds) {
  int64_t h = 0, minute = 0, second = 0, fraction = 0;
  Reader other = *reader;
  if (!other.Take(", ") && !other.TakeOneOf("T ")) return true;
  if (!other.TakeDigits(1, 2, &h) || !other.Take(":") || !other.TakeDigits(2, 2, &minute)) {
    return true;
  }
  *reader = other;
  if (other.Take(":") && other.TakeDigits(2, 2, &second)) {
    *reader = other;
    if (other.Take(".") && other.TakeDigits(1, 1, &fraction)) {
      while (other.TakeDigits(1, 1, &fraction)) {
      }
      *reader = other;
    }
  } else {
    second = 0;
  }
  *hour = h;
  *seconds = minute * 60 + second;
  return IsOnClock(h, minute, second);
}

void ReadHalf(Reader* reader, int64_t* hour) {
  Reader other = *reader;
  char half = '\0';
  other.Take(" ");
  if (!other.TakeOneOf("AaPp", &half) || !other.TakeOneOf("Mm")) return;
  *reader = other;
  *hour = *hour % 12 + (half == 'P' || half == 'p' ? 12 : 0);
}

// Whether the rest is a zone, or nothing.
bool ReadZone(Reader* reader, int64_t* offset) {
  reader->Take(" ");
  char sign = '\0';
  if (reader->TakeOneOf("+-", &sign)) {
    int64_t hours = 0, minutes = 0;
    if (!reader->TakeDigits(2, 2, &hours)) return false;
    if (!reader->AtEnd()) {
      reader->Take(":");
      if (!reader->TakeDigits(2, 2, &minutes)) return false;
    }
    if (!IsOnClock(hours, minutes, 0)) return false;
    *offset = (hours * 3600 + minutes * 60) * (sign == '-' ? -1 : 1);
  } else if (!reader->Take("Z") && !reader->Take("UTC")) {
    reader->Take("GMT");
  }
  return reader->AtEnd();
}

bool ReadDateAndTime(std::string_view text, int64_t* seconds) {
  Reader reader(text);
  int64_t hour = 0, of_hour = 0, offset = 0;
  if (!ReadDate(&reader, seconds)) return false;
  if (!ReadClock(&reader, &hour, &of_hour)) return false;
  ReadHalf(&reader, &hour);
  if (!ReadZone(&reader, &offset)) return false;
  *seconds += hour * 3600 + of_hour - offset;
  return true;
}

bool SecondsOf(int64_t number, TimeUnit unit, int64_t* seconds) {
  switch (unit) {
    case TimeUnit::kNone:
      return false;
    case TimeUnit::kSeconds:
      *seconds = number;
      return true;
    case TimeUnit::kMilliseconds:
      *seconds = FloorDivide(number, 1'000);
      return true;
    case TimeUnit::kMicroseconds:
      *seconds = FloorDivide(number, 1'000'000);
      return true;
    case TimeUnit::kNanoseconds:
      *seconds = FloorDivide(number, 1'000'000'000);
      return true;
    case TimeUnit::kDate:
      if (number < 0 || number > 99991231) return false;
      return DateOf(number / 10000, number / 100 % 100, number % 100, seconds);
  }
  return false;
}

}  // namespace

Status MakeTimeFeature(std::string_view part, std::string_view unit, TimeFeature* out) {
  const int known_part = Find(kParts, part), known_unit = Find(kUnits, unit);
  if (known_part < 0) {
    return Invalid("part must be hour, weekday, month or hour_of_week, got '", part, "'");
  }
  if (known_unit < 0) {
    return Invalid(
        "unit must be seconds, milliseconds, microseconds, nanoseconds, YYYYMMDD or empty, got '",
        unit, "'");
  }
  *out = {static_cast<TimePart>(known_part), static_cast<TimeUnit>(known_unit)};
  return Status();
}

int64_t LimitOf(TimePart part) {
  constexpr int64_t kLimits[] = {24, 8, 13, 168};
  return kLimits[static_cast<int>(part)];
}

int64_t PartOfTime(std::string_view text, TimeFeature feature) {
  text = Trimmed(text);
  if (text.empty() || IsNull(text)) return kMissingTime;
  int64_t number = 0, seconds = 0;
  if (ReadNumber(text, &number)) {
    if (!SecondsOf(number, feature.unit, &seconds)) return kUnreadableTime;
  } else if (!ReadDateAndTime(text, &seconds)) {
    return kUnreadableTime;
  }
  const int64_t days = FloorDivide(seconds, kSecondsOfDay);
  const int64_t hour = FloorModulo(seconds, kSecondsOfDay) / 3600;
  const int64_t weekday = FloorModulo(days + 3, 7);  // 1970 began on a Thursday
  switch (feature.part) {
    case TimePart::kHour:
      return hour;
    case TimePart::kWeekday:
      return weekday + 1;
    case TimePart::kMonth:
      return MonthOf(days);
    case TimePart::kHourOfWeek:
      return weekday * 24 + hour;
  }
  return kUnreadableTime;
}

template <class Offset>
Status PartsOfTimes(Span<const uint8_t> bytes, Span<const Offset> offsets, TimeFeature feature,
                    const ParallelFor& parallel_for, int64_t* out) {
  TWML_RETURN_IF_ERROR(CheckOffsets(offsets, bytes.size()));
  parallel_for(offsets.size() - 1, 60, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto* text = reinterpret_cast<const char*>(bytes.data() + offsets[i]);
      out[i] = PartOfTime({text, static_cast<size_t>(offsets[i + 1] - offsets[i])}, feature);
    }
  });
  return Status();
}

template Status PartsOfTimes(Span<const uint8_t>, Span<const int32_t>, TimeFeature,
                             const ParallelFor&, int64_t*);
template Status PartsOfTimes(Span<const uint8_t>, Span<const int64_t>, TimeFeature,
                             const ParallelFor&, int64_t*);

}  // namespace twml
