//! Tests of finding, binding and cutting. What the benchmarks take from `.sqlx` is tested beside each of them.

use super::*;

fn statement(text: &str, types: &[&str]) -> Statement {
    Statement { text: text.to_owned(), parameter_types: types.iter().map(|&kind| kind.to_owned()).collect() }
}

fn product(texts: &[&str]) -> ProductSql {
    ProductSql { statements: texts.iter().map(|text| statement(text, &[])).collect() }
}

#[test]
fn a_statement_is_found_by_fragments_that_may_span_lines() {
    let product =
        product(&["select lane\n    from outbox_lanes\n    for update", "select lane from outbox_lanes"]);
    let found = product.find(&["lane from outbox_lanes for update"]).unwrap();
    assert!(found.text.starts_with("select lane\n"));
}

#[test]
fn none_or_several_statements_are_an_error_that_names_the_fragments() {
    let product = product(&["select 1", "select 2"]);
    for (fragments, count) in [(["select"], "2 statements"), (["delete from"], "0 statements")] {
        let error = product.find(&fragments).unwrap_err().to_string();
        assert!(error.contains(count) && error.contains(fragments[0]), "{error}");
    }
}

#[test]
fn parameters_are_replaced_and_quoted_text_is_not() {
    let text = "select $1, $12, '$1', \"$1!\" -- $1\n from x /* $1 */ limit $2::bigint";
    let mut values = vec![("Int8", "0"); 12];
    values[1] = ("Int4", ":limit");
    values[11] = ("Text", "'$1'");
    let types: Vec<&str> = values.iter().map(|(kind, _)| *kind).collect();
    let bound = statement(text, &types).bind(&values).unwrap();
    let expected = "select (0), ('$1'), '$1', \"$1!\" -- $1\n from x /* $1 */ limit (:limit)::bigint";
    assert_eq!(bound, expected);
}

#[test]
fn a_parameter_of_another_type_or_without_a_value_is_an_error() {
    let one = statement("select $1", &["Int8"]);
    assert!(one.bind(&[("Text", "'a'")]).unwrap_err().to_string().contains("Int8"));
    assert!(one.bind(&[]).is_err());
    assert!(one.prepared(&["Int8"]).is_ok() && one.prepared(&["Int8", "Int8"]).is_err());
    assert!(statement("select $2", &["Int8"]).bind(&[("Int8", "1")]).is_err());
}

#[test]
fn the_insert_is_cut_out_with_everything_inside_its_parentheses() {
    let text = "with a as (insert into orders (id) select $1 returning id), event as (
                    insert into outbox (id, note) select id, ')' from a -- )
                ) select id from a";
    let cut = statement(text, &["Uuid"]).without_insert_into("outbox").unwrap();
    assert_eq!(
        on_one_line(&cut.text),
        "with a as (insert into orders (id) select $1 returning id) select id from a"
    );
    assert_eq!(cut.parameter_types, ["Uuid"]);
}

#[test]
fn a_statement_of_another_shape_is_not_cut() {
    let shapes = [
        "with a as (select 1) select * from a",
        "insert into outbox (id) select 1",
        "with event as (insert into outbox (id) select 1) select 1",
        "with a as (select 1), event as materialized (insert into outbox (id) select 1) select 1",
        "with a as (select 1), event as (insert into outbox (id) select 1 returning id) select id from event",
        "with a as (select 1), b as (insert into outbox (id) select 1), c as (insert into outbox (id) select 2) select 1",
        "with a as (select 1), event as (insert into outbox (id) select 1",
    ];
    for shape in shapes {
        let error = statement(shape, &[]).without_insert_into("outbox").unwrap_err();
        assert!(format!("{error:#}").contains("failed to cut"), "{shape}");
    }
}

#[test]
fn a_file_of_sqlx_is_read() {
    let file = br#"{"db_name":"PostgreSQL","query":"select $1","hash":"0","describe":{"columns":[],
                   "parameters":{"Left":["Int8",{"Custom":{"name":"mood"}}]},"nullable":[]}}"#;
    let read = Statement::parse(file).unwrap();
    assert_eq!((read.text.as_str(), read.parameter_types[0].as_str()), ("select $1", "Int8"));
    assert!(Statement::parse(br#"{"query":"select 1"}"#).is_err());
}
