#!/bin/sh
# cppcheck over the sources, with what it cannot know: it reads GNU's noreturn, not C11's; jansson's loops are
# macros (a ; would end a -D); and the values of any dtype live in char memory, so casts of its pointers are meant.
# Usage: tools/cppcheck.sh
exec cppcheck -q -j"$(nproc)" --std=c11 --enable=warning,performance,portability --error-exitcode=1 \
    --inline-suppr --suppress=invalidPointerCast -D'_Noreturn=__attribute__((noreturn))' \
    -D'json_array_foreach(a,i,v)=while(((i)=json_array_size(a)),((v)=json_array_get((a),(i))))' \
    -D'json_object_foreach(o,k,v)=while(((k)=json_next((o),&(v))))' \
    -D'TN_VERSION=""' -Iinclude "$@" src tests
