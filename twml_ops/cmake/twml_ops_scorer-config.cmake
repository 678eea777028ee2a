# find_package(twml_ops_scorer) defines the target twml_ops::scorer.
get_filename_component(_twml_ops_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET twml_ops::scorer)
  add_library(twml_ops::scorer SHARED IMPORTED)
  set_target_properties(twml_ops::scorer PROPERTIES
    IMPORTED_LOCATION "${_twml_ops_package}/libtwml_ops_scorer.so"
    IMPORTED_NO_SONAME TRUE
    INTERFACE_INCLUDE_DIRECTORIES "${_twml_ops_package}/include")
endif()
unset(_twml_ops_package)
