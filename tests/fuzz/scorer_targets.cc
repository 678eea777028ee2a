// Exported models: JSON, array files, folders, and requests.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <new>

#include "cc/core/scorer/array_file.h"
#include "cc/core/scorer/json.h"
#include "cc/core/scorer/scorer.h"
#include "tests/cc/step_programs.h"
#include "tests/fuzz/targets.h"

namespace twml::fuzz {
namespace {

using scorer::Form;
using scorer::Json;
using scorer::ProgramInput;
using scorer::Request;
using scorer::RequestArray;
using scorer::Scorer;

void Write(const Json& json, std::string* out) {
  const auto write_string = [out](const std::string& text) {
    *out += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') *out += '\\';
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned char>(c));
      *out += static_cast<unsigned char>(c) < 0x20 ? std::string(escaped) : std::string(1, c);
    }
    *out += '"';
  };
  char number[40];
  switch (json.kind()) {
    case Json::Kind::kNull:
      *out += "null";
      break;
    case Json::Kind::kBool:
      *out += json.boolean() ? "true" : "false";
      break;
    case Json::Kind::kInteger:
      *out += std::to_string(json.integer());
      break;
    case Json::Kind::kNumber:
      std::snprintf(number, sizeof(number), "%.17e", json.number());
      if (std::isnan(json.number())) std::strcpy(number, "NaN");
      if (std::isinf(json.number()))
        std::strcpy(number, json.number() < 0 ? "-Infinity" : "Infinity");
      *out += number;
      break;
    case Json::Kind::kString:
      write_string(json.string());
      break;
    case Json::Kind::kArray:
      *out += '[';
      for (const Json& item : json.items()) {
        if (out->back() != '[' || &item != &json.items()[0])
          *out += &item != &json.items()[0] ? "," : "";
        Write(item, out);
      }
      *out += ']';
      break;
    case Json::Kind::kObject:
      *out += '{';
      for (const auto& member : json.members()) {
        if (&member != &json.members()[0]) *out += ',';
        write_string(member.first);
        *out += ':';
        Write(member.second, out);
        TWML_REQUIRE(json.Find(member.first) == &member.second);
      }
      *out += '}';
  }
}

// What is read is the same when it is written and read again.
void Texts(Input input) {
  const std::string text(input.Rest());
  Json json, again;
  if (!Json::Parse(text, &json).ok()) return;
  std::string written, rewritten;
  Write(json, &written);
  TWML_REQUIRE(Json::Parse(written, &again).ok());
  Write(again, &rewritten);
  TWML_REQUIRE(written == rewritten);
}

std::vector<std::string> TextSeeds() {
  return {
      ManySteps()["scorer.json"],
      R"({"a": [null, true, -0, 1e-5, NaN, -Infinity, 9223372036854775807, "\u00e9\ud83d\ude00"],
"": {"b": {}}, "c\n": "\"\\/\b\f\n\r\t", "d": 0.1})"};
}

// A file in memory.
void ArrayFiles(Input input) {
  const std::string_view content = input.Rest();
  static const int file = ::memfd_create("array", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  TWML_REQUIRE(::ftruncate(file, 0) == 0);
  TWML_REQUIRE(::pwrite(file, content.data(), content.size(), 0) ==
               static_cast<ssize_t>(content.size()));
  scorer::ArrayHeader header;
  scorer::ArrayFile array;
  const bool described = scorer::ReadArrayHeader(path, &header).ok();
  const bool opened = scorer::ArrayFile::Open(path, scorer::ArrayPlace::kMapped, &array).ok();
  TWML_REQUIRE(described == opened);
  if (!opened) return;
  TWML_REQUIRE(header.shape == array.shape() && header.size == array.size());
  int64_t size = 1;
  for (const int64_t dim : array.shape()) size *= dim;
  TWML_REQUIRE(size == array.size());
  const int64_t bytes = size * scorer::SizeOf(array.type());
  TWML_REQUIRE(header.data_begin + bytes <= static_cast<int64_t>(content.size()));
  const char* const items = reinterpret_cast<const char*>(array.items<int8_t>().data());
  TWML_REQUIRE(bytes == 0 || std::memcmp(items, content.data() + header.data_begin, bytes) == 0);
  (void)array.CheckItems(1).ok();
}

std::vector<std::string> ArraySeeds() {
  return {FloatArray({2, 3}, 1), Npy("<i8", {2}, std::vector<int64_t>{1, 2}),
          Npy("|u1", {}, std::vector<uint8_t>{7}), Npy("<f8", {0, 4}, std::vector<double>())};
}

// Requests for a scorer: mostly arrays of the sizes that it needs.
class Requests {
 public:
  Requests(const Scorer& scorer, Input* input) : scorer_(scorer), input_(*input) {}

  void Run() {
    for (int round = 0; round < 3; ++round) {
      const bool raw = !scorer_.columns().empty() && (input_.Below(2) == 1);
      Request request;
      request.raw = raw;
      constexpr int64_t kRows[] = {0, 1, 2, 3, 5, 33, 40, -1};
      request.rows = kRows[input_.Below(8)];
      const auto& inputs = raw ? scorer_.columns() : scorer_.features();
      const bool ranking = input_.Below(4) == 0;
      std::vector<Memory> memory(inputs.size()), user_memory(inputs.size());
      std::vector<RequestArray> arrays, user;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const bool of_user = ranking && input_.Below(2) == 1;
        const bool split = ranking && input_.Below(4) == 0;
        arrays.push_back(!of_user || split ? Make(inputs[i], request.rows, &memory[i])
                                           : RequestArray());
        user.push_back(of_user || split ? Make(inputs[i], 1, &user_memory[i]) : RequestArray());
      }
      request.arrays = arrays;
      if (ranking) request.user = user;
      Ask(request);
    }
  }

 private:
  static constexpr int64_t kMost = 1 << 14;
  struct Memory {
    std::vector<int64_t> numbers, offsets, dims;
    std::string bytes;
  };

  int64_t SizeOf(const ProgramInput& input, int64_t rows, Memory* memory) {
    memory->dims = input.dims;
    if (!input.shape_known) {
      memory->dims.resize(input_.Below(4));
      for (int64_t& dim : memory->dims) dim = input_.Id();
    }
    const bool per_row = input.form == Form::kDense || input.form == Form::kStrings;
    int64_t size = input.form == Form::kRowSplits ? rows + 1 : per_row ? rows : 2 * rows;
    for (const int64_t dim : memory->dims) {
      if (__builtin_mul_overflow(size, per_row ? dim : 1, &size)) size = 0;
    }
    if (input_.Below(16) == 0) size += input_.Below(3) - 1;
    return size < 0 || size > kMost ? 0 : size;
  }

  RequestArray Make(const ProgramInput& input, int64_t rows, Memory* memory) {
    RequestArray array;
    array.size = SizeOf(input, rows, memory);
    if (!input.shape_known) array.dims = &memory->dims;
    if (input.form == Form::kStrings || input.form == Form::kBagStrings) {
      memory->offsets = {0};
      for (int64_t i = 0; i < array.size; ++i) {
        const int64_t length = input_.Below(8);
        for (int64_t c = 0; c < length; ++c) memory->bytes += input_.Take<char>();
        memory->offsets.push_back(static_cast<int64_t>(memory->bytes.size()));
      }
      array.num_bytes = static_cast<int64_t>(memory->bytes.size());
      if (input_.Below(16) == 0) memory->offsets[input_.Below(array.size + 1)] = input_.Id();
      array.offsets = memory->offsets.data();
      memory->bytes.shrink_to_fit();
      array.data = memory->bytes.data();
      return array;
    }
    // Exactly the items, so that reading behind them is found.
    const int64_t bytes = array.size * (input.form == Form::kValues  ? 4
                                        : input.form != Form::kDense ? 8
                                                                     : scorer::SizeOf(input.type));
    memory->bytes.resize(bytes);
    memory->bytes.shrink_to_fit();
    char* const to = memory->bytes.data();
    const bool any = input_.Below(4) == 0;
    for (int64_t i = 0; i < array.size; ++i) {
      if (input.form == Form::kRowSplits) {
        const int64_t split = any ? input_.Id() : 2 * i;
        std::memcpy(to + 8 * i, &split, 8);
      } else if (bytes == 8 * array.size) {
        const int64_t id = input_.Id();
        std::memcpy(to + 8 * i, &id, 8);
      } else if (bytes == 4 * array.size) {
        const float x = any ? input_.Take<float>() : static_cast<float>(input_.Take<int8_t>()) / 16;
        std::memcpy(to + 4 * i, &x, 4);
      } else {
        to[i] = static_cast<char>(input_.Below(2));
      }
    }
    // Small arrays are within the string itself: a copy has exactly their size.
    memory->numbers.resize((bytes + 7) / 8);
    if (bytes > 0) std::memcpy(memory->numbers.data(), to, bytes);
    array.data = bytes == 0 ? nullptr : static_cast<const void*>(memory->numbers.data());
    return array;
  }

  void Ask(const Request& request) {
    std::vector<int64_t> shape;
    if (!scorer_.OutputShape(request, &shape).ok()) return;
    int64_t size = request.rows;
    for (const int64_t dim : shape) TWML_REQUIRE(!__builtin_mul_overflow(size, dim, &size));
    if (size > kMost * 8) return;
    std::vector<float> out(size < 0 ? 0 : size, 7), other(out);
    const bool ok = scorer_.Predict(request, Serial, out.data(), size).ok();
    TWML_REQUIRE(scorer_.Predict(request, Backwards, other.data(), size).ok() == ok);
    if (!ok) return;
    TWML_REQUIRE(size >= 0);
    for (size_t i = 0; i < out.size(); ++i) {
      TWML_REQUIRE(std::memcmp(&out[i], &other[i], 4) == 0 ||
                   (out[i] != out[i] && other[i] != other[i]));
    }
  }

  const Scorer& scorer_;
  Input& input_;
};

const std::string& Folder() {
  static const auto* const root = new TemporaryFolder;
  static const std::string folder = *root / "model";
  return folder;
}

void LoadAndAsk(const Files& files, Input* requests) {
  static const bool registered = [] {
    const std::string root = std::filesystem::path(Folder()).parent_path();
    return std::atexit([] {
             std::filesystem::remove_all(std::filesystem::path(Folder()).parent_path());
           }) == 0;
  }();
  (void)registered;
  static Files written;
  for (const auto& [name, content] : written) {
    if (files.count(name) == 0) ::unlink((Folder() + "/" + name).c_str());
  }
  std::filesystem::create_directories(Folder());
  for (const auto& [name, content] : files) {
    const auto known = written.find(name);
    if (known == written.end() || known->second != content) {
      WriteFile(Folder() + "/" + name, content);
    }
  }
  written = files;
  for (const bool in_files : {false, true}) {
    scorer::TableOptions options;
    if (in_files) {
      options.storage = scorer::TableStorage::kFile;
      options.least_bytes = 0;
      options.cache_bytes = 1 << 12;
    }
    std::shared_ptr<const Scorer> scorer;
    try {
      if (!Scorer::Load(Folder(), options, &scorer).ok()) return;
      Input same = *requests;
      Requests(*scorer, &same).Run();
    } catch (const std::bad_alloc&) {  // an error of the C interface and of Python
    }
  }
}

// A folder as one text: each file begins with a mark, its name and a line end.
constexpr std::string_view kMark = "\xfe\xfb";

Files Split(std::string_view text, std::string* requests) {
  Files files;
  while (!text.empty()) {
    const size_t end = std::min(text.size(), text.find(kMark, kMark.size()));
    std::string_view file =
        text.substr(std::min(kMark.size(), end), end - std::min(kMark.size(), end));
    text.remove_prefix(end);
    const size_t line = std::min(file.size(), file.find('\n'));
    const std::string name(file.substr(0, line));
    const std::string content(file.substr(std::min(line + 1, file.size())));
    if (name == "request") *requests = content;
    bool simple = !name.empty() && name.size() < 60 && name[0] != '.';
    for (const char c : name) simple = simple && c != '/' && c != '\0';
    if (simple) files[name] = content;
  }
  return files;
}

void Folders(Input input) {
  std::string request;
  const Files files = Split(input.Rest(), &request);
  Input requests(reinterpret_cast<const uint8_t*>(request.data()), request.size());
  LoadAndAsk(files, &requests);
}

std::string Join(const Files& files) {
  std::string out;
  for (const auto& [name, content] : files) {
    out.append(kMark).append(name).append("\n").append(content);
  }
  return out.append(kMark).append("request\n").append("\1\0\3\3\3\2\1\0\5\7\1\1\2\3", 14);
}

// A model of raw columns of each kind.
Files RawColumns() {
  Files files;
  files["scorer.json"] = R"({"format": 1,
"inputs": {"continuous": "dense", "continuous_present": "dense", "categorical": "dense",
 "bag_b_ids": "ids", "bag_b_values": "values", "bag_b_row_splits": "row_splits"},
"shapes": {"continuous": [2], "continuous_present": [2], "categorical": [2]},
"raw": {"layout": "fields", "numbers": ["n", "m"], "categories": [
 {"name": "c", "key": [1, 2], "bag": false, "weights": null, "typed": true},
 {"name": "b", "key": [3, 4], "bag": true, "weights": "w"},
 {"name": "t_hour", "key": [5, 6], "bag": false, "weights": null,
  "time": {"column": "t", "part": "hour", "unit": "seconds"}}], "sparse": false},
"steps": [{"op": "wrap_ids", "in": ["bag_b_ids"], "out": ["h"], "arrays": {},
 "attributes": {"num_rows": 16}},
 {"op": "sparse_linear", "in": ["h", "bag_b_values", "bag_b_row_splits"], "out": ["a"],
  "arrays": {"table": "table.npy"}, "attributes": {}},
 {"op": "field_embedding", "in": ["categorical"], "out": ["e"],
  "arrays": {"table": "table.npy"}, "attributes": {"num_rows": [9, 7], "pooling": "mean",
  "bag_combiner": "sum"}},
 {"op": "concatenate", "in": ["a", "e", "continuous"], "out": ["x"], "arrays": {},
  "attributes": {"axis": -1}}], "output": "x"})";
  files["table.npy"] = FloatArray({16, 2}, 3);
  return files;
}

std::vector<std::string> FolderSeeds() {
  std::vector<std::string> seeds = {Join(ManySteps()), Join(RawColumns())};
  step_programs::Generator g(1);
  for (const auto& kind : step_programs::Kinds()) {
    for (int i = 0; i < 3; ++i) seeds.push_back(Join(step_programs::MakeProgram(kind, &g)));
  }
  return seeds;
}

// Requests for three models that are loaded once.
void ModelRequests(Input input) {
  static const auto* const models = [] {
    auto* const made = new std::vector<std::shared_ptr<const Scorer>>;
    const TemporaryFolder root;
    for (const Files& files : {ManySteps(), RawColumns()}) {
      WriteFolder(root / "model", files);
      std::shared_ptr<const Scorer> scorer;
      const Status status = Scorer::Load(root / "model", {}, &scorer);
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
      TWML_REQUIRE(status.ok());
      made->push_back(std::move(scorer));
    }
    return made;
  }();
  const auto which = static_cast<size_t>(input.Below(2));
  Requests(*(*models)[which], &input).Run();
}

std::vector<std::string> RequestSeeds() {
  std::vector<std::string> seeds;
  for (const uint8_t model : {0, 1}) {
    for (const uint8_t rows : {1, 5}) {
      Output out;
      out.PutAll<uint8_t>({model, 1, rows, 1});
      for (int i = 0; i < 200; ++i) out.Put(static_cast<uint8_t>(1 + i % 15));
      seeds.push_back(out.bytes());
    }
  }
  return seeds;
}

}  // namespace

std::vector<Target> ScorerTargets() {
  return {{"json", Texts, TextSeeds},
          {"array_files", ArrayFiles, ArraySeeds},
          {"scorer_folders", Folders, FolderSeeds},
          {"scorer_requests", ModelRequests, RequestSeeds}};
}

}  // namespace twml::fuzz
