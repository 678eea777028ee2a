//! Scores two rows with the model of docs/serving.md through the C interface.
//!
//!     rustc score.rs -L PACKAGE -C link-arg=-Wl,-rpath,PACKAGE
//!
//! PACKAGE is the folder of the Python package twml_ops.
use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Array {
    data: *const c_void,
    size: i64,
    offsets: *const i64,
    num_bytes: i64,
}

#[repr(C)]
struct Request {
    set: i32,
    num_rows: i64,
    arrays: *const Array,
    num_arrays: i64,
    user: *const Array,
    threads: *mut c_void,
    parallel_for: *const c_void,
    pool: *mut c_void,
}

#[link(name = "twml_ops_scorer")]
extern "C" {
    fn twml_ops_scorer_load(
        folder: *const c_char,
        scorer: *mut *mut c_void,
        error: *mut c_char,
        error_size: usize,
    ) -> i32;
    fn twml_ops_scorer_predict(
        scorer: *const c_void,
        request: *const Request,
        out: *mut f32,
        out_size: i64,
        error: *mut c_char,
        error_size: usize,
    ) -> i32;
    fn twml_ops_scorer_free(scorer: *mut c_void);
}

fn array<T>(items: &[T]) -> Array {
    Array {
        data: items.as_ptr() as *const c_void,
        size: items.len() as i64,
        offsets: null(),
        num_bytes: 0,
    }
}

fn main() {
    let folder = CString::new(std::env::args().nth(1).expect("usage: score MODEL")).unwrap();
    let mut error = [0 as c_char; 256];
    let message = |e: &[c_char]| unsafe { CStr::from_ptr(e.as_ptr()) }.to_string_lossy().into_owned();
    let mut scorer = null_mut();
    let failed =
        unsafe { twml_ops_scorer_load(folder.as_ptr(), &mut scorer, error.as_mut_ptr(), error.len()) };
    if failed != 0 {
        eprintln!("{}", message(&error));
        std::process::exit(1);
    }
    let (ids, values, row_splits) = ([3i64, 14, 15], [1f32, 2.0, 3.0], [0i64, 2, 3]);
    let arrays = [array(&ids), array(&values), array(&row_splits)];
    let request = Request {
        set: 0,
        num_rows: 2,
        arrays: arrays.as_ptr(),
        num_arrays: 3,
        user: null(),
        threads: null_mut(),
        parallel_for: null(),
        pool: null_mut(),
    };
    let mut out = [0f32; 2];
    let failed = unsafe {
        twml_ops_scorer_predict(scorer, &request, out.as_mut_ptr(), 2, error.as_mut_ptr(), error.len())
    };
    unsafe { twml_ops_scorer_free(scorer) };
    if failed != 0 {
        eprintln!("{}", message(&error));
        std::process::exit(1);
    }
    for p in out {
        println!("{p}");
    }
}
