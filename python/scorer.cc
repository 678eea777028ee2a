#include "cc/core/scorer/scorer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/csr.h"
#include "cc/core/fork.h"
#include "cc/serving/served_model.h"
#include "cc/serving/thread_pool.h"
#include "python/bind.h"

namespace twml {
namespace {

using scorer::Form;
using scorer::ProgramInput;
using scorer::Request;
using scorer::RequestArray;
using scorer::Scorer;
using scorer::TableOptions;
using scorer::TableStorage;
using scorer::Type;
using serving::ServedModel;
using serving::ThreadPool;

// The threads of all scorers of the process, one for each core. They are never joined, because the
// process may end in any of them.
ThreadPool& Pool() {
  static auto* const pools = new PerProcess<ThreadPool>;  // so that no fork() finds it half made
  return pools->Get([] {
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    return std::make_unique<ThreadPool>(static_cast<int>(cores));
  });
}

// RaiseIfError, for messages with names and bytes of files, which need not be UTF-8.
void RaiseIfInvalid(const Status& status) {
  if (status.ok()) return;
  const std::string& text = status.message();
  const auto size = static_cast<py::ssize_t>(text.size());
  const auto message = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), size, "backslashreplace"));
  if (message) PyErr_SetObject(PyExc_ValueError, message.ptr());
  throw py::error_already_set();
}

// Arrays by name.
using Named = py::typing::Dict<py::str, py::object>;

const char* FormName(Form form) {
  constexpr const char* kNames[] = {"dense", "strings", "ids", "values", "row_splits", "bag"};
  return kNames[static_cast<int>(form)];
}

// An array of T; `object` itself if it is one.
template <class T>
py::array ArrayOf(const py::handle& object, const char* name) {
  using Direct = py::array_t<T, py::array::c_style>;
  if (py::isinstance<Direct>(object)) {
    const auto array = py::reinterpret_borrow<py::array>(object);
    if ((array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0) return array;
  }
  return ToArray<T>(object, name);
}

// The bool of each item: other arrays are compared with 0, as NumPy does.
py::array BoolsOf(const py::handle& object, const char* name) {
  if (py::isinstance<py::array_t<bool, py::array::c_style>>(object)) {
    return py::reinterpret_borrow<py::array>(object);
  }
  const py::array any = ToAnyArray(object);
  if (!any) RaiseIfError(Invalid(name, " must be an array of bools"));
  return py::reinterpret_steal<py::array>(ConvertWithNumPy(any, py::dtype::of<bool>()).release());
}

// The arrays of a request, and what they refer to.
class Arrays {
 public:
  explicit Arrays(size_t size) : arrays_(size), dims_(size) { owners_.reserve(2 * size); }

  void AddDense(size_t i, const ProgramInput& input, const py::handle& object) {
    const char* const name = input.name.c_str();
    const py::array array = input.type == Type::kFloat     ? ArrayOf<float>(object, name)
                            : input.type == Type::kInteger ? ArrayOf<int64_t>(object, name)
                                                           : BoolsOf(object, name);
    if (array.ndim() == 0) RaiseIfError(Invalid(name, " must have at least 1 dimension, got 0"));
    for (py::ssize_t d = 1; d < array.ndim(); ++d) dims_[i].push_back(array.shape(d));
    if (input.shape_known && dims_[i] != input.dims) {
      std::string expected = "(B";
      for (const int64_t dim : input.dims) expected += ", " + std::to_string(dim);
      RaiseIfError(Invalid(name, " must have the shape ", expected, "), got ", ShapeOf(array)));
    }
    Set(i, input, array);
    arrays_[i].dims = &dims_[i];
    SetRows(input, array.shape(0));
  }

  void AddEntries(size_t i, const ProgramInput& input, const py::handle& object) {
    const char* const name = input.name.c_str();
    const py::array array =
        input.form == Form::kValues ? ArrayOf<float>(object, name) : ArrayOf<int64_t>(object, name);
    RequireRank(array, 1, name);
    Set(i, input, array);
    if (input.form == Form::kRowSplits) {
      if (array.size() == 0) RaiseIfError(CheckRowSplits({}, 0));
      SetRows(input, array.size() - 1);
    }
  }

  // A pair of the bytes of all strings and their offsets.
  void AddStrings(size_t i, const ProgramInput& input, const py::handle& object) {
    const auto pair = object.cast<py::tuple>();
    const py::array bytes = ArrayOf<uint8_t>(pair[0], input.name.c_str());
    const py::array offsets = ArrayOf<int64_t>(pair[1], input.name.c_str());
    Set(i, input, bytes);
    owners_.push_back(offsets);
    arrays_[i].num_bytes = bytes.size();
    arrays_[i].size = std::max<int64_t>(0, offsets.size() - 1);
    arrays_[i].offsets = static_cast<const int64_t*>(offsets.data());
    const int64_t row = input.num_strings();
    if (input.form == Form::kStrings) SetRows(input, row == 0 ? 0 : arrays_[i].size / row);
  }

  void Add(size_t i, const ProgramInput& input, const py::handle& object) {
    if (input.form == Form::kDense) return AddDense(i, input, object);
    if (input.form == Form::kStrings || input.form == Form::kBagStrings) {
      return AddStrings(i, input, object);
    }
    AddEntries(i, input, object);
  }

  const std::vector<RequestArray>& arrays() const { return arrays_; }
  bool has_rows() const { return rows_ >= 0; }
  int64_t rows() const { return std::max<int64_t>(0, rows_); }

 private:
  void Set(size_t i, const ProgramInput&, const py::array& array) {
    owners_.push_back(array);
    arrays_[i].data = array.data();
    arrays_[i].size = array.size();
  }

  void SetRows(const ProgramInput& input, int64_t rows) {
    if (rows_ < 0) {
      rows_ = rows;
      first_ = &input.name;
    } else if (rows != rows_) {
      RaiseIfError(Invalid("all inputs must have the same number of rows: ", *first_, " has ",
                           rows_, ", ", input.name, " has ", rows));
    }
  }

  std::vector<RequestArray> arrays_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<py::object> owners_;
  int64_t rows_ = -1;
  const std::string* first_ = nullptr;
};

class PyScorer {
 public:
  PyScorer(const std::string& folder, const std::string& storage, int64_t cache_bytes,
           int64_t sums_cache_bytes, int64_t least_bytes, bool direct, int queue_depth,
           bool use_io_uring, int64_t delay_nanoseconds) {
    TableOptions options;
    constexpr std::pair<const char*, TableStorage> kStorages[] = {{"mapped", TableStorage::kMapped},
                                                                  {"memory", TableStorage::kMemory},
                                                                  {"file", TableStorage::kFile}};
    const auto* const found =
        std::find_if(std::begin(kStorages), std::end(kStorages),
                     [&storage](const auto& known) { return storage == known.first; });
    if (found == std::end(kStorages)) {
      RaiseIfError(Invalid("storage must be 'mapped', 'memory' or 'file', got '", storage, "'"));
    }
    options.storage = found->second;
    options.cache_bytes = cache_bytes;
    options.sums_cache_bytes = sums_cache_bytes;
    options.least_bytes = least_bytes;
    options.direct = direct;
    options.reader = {queue_depth, use_io_uring, delay_nanoseconds};
    Status status;
    {
      py::gil_scoped_release release;
      status = ServedModel::Load(folder, options, &model_);
    }
    RaiseIfInvalid(status);
  }

  py::typing::Dict<std::string, py::int_> Statistics() const {
    const std::shared_ptr<const Scorer> current = model_->Get();
    const scorer::TableStatistics s = current->tables().statistics();
    py::dict out;
    out["entries"] = s.entries;
    out["rows"] = s.rows;
    out["hits"] = s.hits;
    out["misses"] = s.misses;
    out["reads"] = s.reads;
    out["bytes_read"] = s.bytes_read;
    out["bytes_needed"] = s.bytes_needed;
    out["sum_hits"] = s.sum_hits;
    out["sum_misses"] = s.sum_misses;
    out["tables"] = current->tables().size();
    out["cache_bytes"] = current->tables().cache_bytes();
    out["direct"] = current->tables().direct();
    out["io_uring"] = current->tables().uses_io_uring();
    return out;
  }

  void Reload(const std::string& folder) {
    Status status;
    {
      py::gil_scoped_release release;
      status = model_->Reload(folder);
    }
    RaiseIfInvalid(status);
  }

  py::typing::List<py::typing::Tuple<std::string, std::string>> Features() const {
    return Described(model_->Get()->features());
  }
  py::typing::List<py::typing::Tuple<std::string, std::string>> Columns() const {
    return Described(model_->Get()->columns());
  }

  py::typing::List<std::string> Times() const {
    py::list out;
    for (const ProgramInput& column : model_->Get()->columns()) {
      if (column.is_time) out.append(column.name);
    }
    return out;
  }

  py::typing::Dict<std::string, std::string> Separators() const {
    py::dict out;
    for (const ProgramInput& column : model_->Get()->columns()) {
      if (!column.separator.empty()) out[py::str(column.name)] = column.separator;
    }
    return out;
  }

  // Of each array: its name, form, type, row splits, and the shape of a row.
  using Description =
      py::typing::Tuple<std::string, std::string, std::string, std::string, py::object>;
  py::typing::List<Description> Describe(bool raw) const {
    const std::shared_ptr<const Scorer> current = model_->Get();
    constexpr const char* kTypes[] = {"float32", "int64", "bool"};
    py::list out;
    for (const ProgramInput& input : raw ? current->columns() : current->features()) {
      const char* type = "int64";  // of ids and row splits
      if (input.form == Form::kDense) type = kTypes[static_cast<int>(input.type)];
      if (input.form == Form::kValues) type = "float32";
      if (input.form == Form::kStrings || input.form == Form::kBagStrings) type = "string";
      std::string splits = current->row_splits_of(input);
      // The columns of raw sparse features are registers with the names of features.
      if (raw && input.splits_input >= 0) splits = current->columns()[input.splits_input].name;
      py::object dims = py::none();
      if (input.shape_known) dims = py::cast(input.dims);
      out.append(py::make_tuple(input.name, FormName(input.form), type, splits, dims));
    }
    return out;
  }
  std::string OutputName() const { return model_->Get()->output_name(); }

  py::typing::List<py::typing::Tuple<std::string, py::typing::List<py::int_>>> Outputs() const {
    py::list out;
    for (const scorer::ProgramOutput& output : model_->Get()->outputs()) {
      out.append(py::make_tuple(output.name, py::cast(output.dims)));
    }
    return out;
  }

  FloatArray Predict(const Named& given, bool raw, int num_threads) const {
    const std::shared_ptr<const Scorer> current = model_->Get();
    const auto& inputs = raw ? current->columns() : current->features();
    Arrays arrays(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const py::handle found = Find(given, inputs[i]);
      if (!found) RaiseIfError(Invalid("the input '", inputs[i].name, "' is missing"));
      arrays.Add(i, inputs[i], found);
    }
    Request request;
    request.raw = raw;
    request.arrays = arrays.arrays();
    request.rows = arrays.rows();
    return Run(*current, request, num_threads);
  }

  FloatArray Rank(const Named& user, const Named& candidates, bool raw, int num_threads) const {
    const std::shared_ptr<const Scorer> current = model_->Get();
    const auto& inputs = raw ? current->columns() : current->features();
    Arrays of_user(inputs.size()), of_candidates(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const py::handle first = Find(user, inputs[i]), second = Find(candidates, inputs[i]);
      if (!first && !second) RaiseIfError(Invalid("the input '", inputs[i].name, "' is missing"));
      if (first) of_user.Add(i, inputs[i], first);
      if (second) of_candidates.Add(i, inputs[i], second);
    }
    if (of_user.has_rows() && of_user.rows() != 1) {
      RaiseIfError(Invalid("the user must have 1 row, got ", of_user.rows()));
    }
    if (!of_candidates.has_rows()) {
      RaiseIfError(Invalid("candidates must have an input that says how many there are"));
    }
    Request request;
    request.raw = raw;
    request.arrays = of_candidates.arrays();
    request.user = of_user.arrays();
    request.rows = of_candidates.rows();
    return Run(*current, request, num_threads);
  }

 private:
  static py::list Described(const std::vector<ProgramInput>& inputs) {
    py::list out;
    for (const ProgramInput& input : inputs) {
      out.append(py::make_tuple(input.name, FormName(input.form)));
    }
    return out;
  }

  static py::handle Find(const Named& given, const ProgramInput& input) {
    return PyDict_GetItemString(given.ptr(), input.name.c_str());
  }

  static FloatArray Run(const Scorer& current, const Request& request, int num_threads) {
    std::vector<int64_t> dims;
    RaiseIfInvalid(current.OutputShape(request, &dims));
    std::vector<py::ssize_t> shape = {static_cast<py::ssize_t>(request.rows)};
    shape.insert(shape.end(), dims.begin(), dims.end());
    FloatArray out(shape);
    float* const data = out.mutable_data();
    const int64_t size = out.size();
    // A short call keeps the lock of the interpreter: it would take longer to get it back.
    constexpr int64_t kShortRows = 4;
    if (request.rows <= kShortRows && !current.reads_files()) {
      RaiseIfInvalid(current.Predict(request, Serial, data, size));
      return out;
    }
    Status status;
    bool unreadable = false;
    {
      py::gil_scoped_release release;
      status = num_threads == 1
                   ? current.Predict(request, Serial, data, size, &unreadable)
                   : current.Predict(request, Parallel(num_threads), data, size, &unreadable);
    }
    if (unreadable) {
      PyErr_SetString(PyExc_OSError, status.message().c_str());
      throw py::error_already_set();
    }
    RaiseIfInvalid(status);
    return out;
  }

  static ParallelFor Parallel(int num_threads) {
    const int most = num_threads > 0 ? num_threads : Pool().num_threads();
    return [most](int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& body) {
      Pool().Run(total, cost, most, body);
    };
  }

  std::unique_ptr<ServedModel> model_;
};

}  // namespace

void BindScorer(py::module_& m) {
  using py::literals::operator""_a;
  py::class_<PyScorer>(m, "NativeScorer", R"(An exported model; core.Scorer has the documentation.

Args:
  folder: the folder that export.to_scorer wrote.
  storage: "mapped", "memory" or "file", where the large tables are.
  cache_bytes: of the cache of rows of tables in files.
  sums_cache_bytes: of the cache of sums of rows.
  least_bytes: smaller tables are in memory.
  direct: whether reads go past the page cache.
  queue_depth: reads of a request that run at the same time.
  use_io_uring: whether to use it, if the kernel has it.
  delay_nanoseconds: how long a read takes at least, for experiments.

Raises:
  ValueError: the folder cannot be read, or an option is out of range.)")
      .def(py::init<const std::string&, const std::string&, int64_t, int64_t, int64_t, bool, int,
                    bool, int64_t>(),
           "folder"_a, "storage"_a = "mapped", IntArg("cache_bytes") = 256 << 20,
           IntArg("sums_cache_bytes") = 0, IntArg("least_bytes") = 1 << 20, "direct"_a = false,
           IntArg("queue_depth") = 64, "use_io_uring"_a = true, IntArg("delay_nanoseconds") = 0)
      .def("statistics", &PyScorer::Statistics, R"(What was read of tables in files.

Returns:
  The counts by name; core.TableStatistics describes them.)")
      .def("reload", &PyScorer::Reload, "folder"_a, R"(Replaces the model by that of a folder.

Args:
  folder: the folder that export.to_scorer wrote.

Raises:
  ValueError: the folder cannot be read, or its model takes other inputs.)")
      .def_property_readonly("features", &PyScorer::Features,
                             "The names and the forms of the arrays that the model takes.")
      .def_property_readonly("columns", &PyScorer::Columns,
                             "The names and the forms of the raw columns that it takes.")
      .def_property_readonly("times", &PyScorer::Times,
                             "The names of the raw columns that are times.")
      .def_property_readonly("separators", &PyScorer::Separators,
                             "What is between the categories of bags, and between their weights, "
                             "where they are texts, by column.")
      .def_property_readonly("output_name", &PyScorer::OutputName, "The name of the output.")
      .def_property_readonly("outputs", &PyScorer::Outputs,
                             "The names of several outputs and the shapes of their rows.")
      .def("describe", &PyScorer::Describe, "raw"_a, R"(Describes the arrays of a request.

Args:
  raw: the raw columns, and not the features.

Returns:
  For each array its name, its form, its type (float32, int64, bool or string), the name of its row
  splits or "", and the shape of a row, or None if a model of an older version does not say.)")
      .def("predict", &PyScorer::Predict, "arrays"_a, "raw"_a = false, IntArg("num_threads") = 0,
           R"(Computes predictions.

Args:
  arrays: the features, or the columns if raw is set, by name. A column of text is a pair of uint8
    bytes and int64 offsets.
  raw: whether arrays are columns.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [B, ...].

Raises:
  ValueError: an array is missing, or has another type or shape; or an id is out of range.
  OSError: a file with a table cannot be read any more.)")
      .def("rank", &PyScorer::Rank, "user"_a, "candidates"_a, "raw"_a = false,
           IntArg("num_threads") = 0, R"(Computes predictions for one user and many candidates.

Args:
  user: arrays as for predict, with one row.
  candidates: arrays as for predict.
  raw: whether the arrays are columns.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [B, ...], for each candidate.

Raises:
  ValueError: an array is missing, is given twice, or has another type or shape; or an id is out of
    range.)");
}

}  // namespace twml
